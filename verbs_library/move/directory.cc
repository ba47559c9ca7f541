#include "verbs_library/move/directory.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "verbs_library/move/connection.h"
#include "verbs_library/move/text_store.h"
#include "verbs_library/shadow/devices.h"
#include "verbs_library/shadow/log.h"

namespace ppmr::verbs {
namespace {

EndFile file_of(const Qp& qp, const ControlAddress& control, uint32_t real_qpn, bool moves) {
  EndFile file;
  file.control = control;
  file.secret = qp.secret;
  file.moves = moves;
  file.qpn = real_qpn;
  if (qp.connection) file.gid = qp.connection->gid.gid;
  file.has_moved = qp.owner->has_moved;
  return file;
}

// Returns the names of a queue pair with this number: one for each GID of the device.
std::vector<EndName> names_of(const Context& context, uint32_t qpn) {
  std::vector<EndName> names;
  std::set<Gid> seen;
  ibv_device_attr device = {};
  if (real().ibv_query_device(context.real, &device) != 0) return names;
  for (uint32_t port = 1; port <= device.phys_port_cnt; ++port) {
    for (const GidEntry& entry : read_gids(context.real, port)) {
      if (seen.insert(entry.gid).second) names.push_back({{entry.gid, qpn}, entry, port});
    }
  }
  return names;
}

// Returns whether a name belongs to a process of this machine that was killed: no process listens
// at the address in its file. A process that moves writes that into its file before it stops
// listening.
bool is_stale(const EndId& name, const ControlAddress& own) {
  const auto file = read_end_file(name);
  if (!file) return false;
  if (file->moves || file->control.ip != own.ip || file->control.port == own.port) return false;
  const int fd = start_connect(file->control);
  if (fd < 0) return errno == ECONNREFUSED;
  constexpr int kLimitMs = 1000;  // the address is of this machine, so the answer comes at once
  pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
  poll(&ready, 1, kLimitMs);
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  close(fd);
  return error == ECONNREFUSED;
}

// Creates an entry. Replaces a stale entry of the same name. Returns the same as
// TextStore::create().
int create_text(const EndId& name, const std::string& text, const ControlAddress& own) {
  TextStore& store = *text_store();
  const std::string file = file_name_of(name);
  const int error = store.create(file, text);
  if (error != EEXIST || !is_stale(name, own)) return error;
  store.remove(file);
  return store.create(file, text);
}

// Removes the names of a program that ends without destroying its queue pairs.
__attribute__((destructor)) void remove_all_names() {
  const std::unique_lock control(world().control, std::try_to_lock);
  if (!control) return;
  for (Context* context : world().contexts) {
    for (Qp* qp : context->queue_pairs) remove_names(*qp);
  }
}

}  // namespace

Secret new_secret() {
  Secret secret = {};
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    log("no random numbers: %s", std::strerror(errno));
  return secret;
}

bool claim_names(Qp& qp, uint32_t qpn, const ControlAddress& control) {
  if (!text_store()) return true;
  const std::string text = format(file_of(qp, control, qpn, false));
  for (const EndName& name : names_of(*qp.owner, qpn)) {
    const int error = create_text(name.end, text, control);
    if (error == EEXIST) {
      remove_names(qp);
      return false;
    }
    // After an error the queue pair works, but cannot move. A release reports that.
    if (error != 0)
      log("create %s: %s", file_name_of(name.end).c_str(), std::strerror(error));
    else
      qp.names.push_back(name);
  }
  return true;
}

void publish_names(const Qp& qp, const ControlAddress& control, bool moves) {
  const uint32_t qpn = qp.real ? qp.real->qp_num : qp.qp_base.qp_num;
  const std::string text = format(file_of(qp, control, qpn, moves));
  for (const EndName& name : qp.names) {
    const std::string file = file_name_of(name.end);
    if (const int error = text_store()->write(file, text); error != 0)
      log("write %s: %s", file.c_str(), std::strerror(error));
  }
}

void remove_names(Qp& qp) {
  for (const EndName& name : qp.names) text_store()->remove(file_name_of(name.end));
  qp.names.clear();
}

std::optional<EndFile> read_end_file(const EndId& end) {
  if (!text_store()) return std::nullopt;
  const auto text = text_store()->get(file_name_of(end));
  return text ? parse_end_file(*text) : std::nullopt;
}

}  // namespace ppmr::verbs
