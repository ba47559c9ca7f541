#include "verbs_library/move/directory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>

#include "verbs_library/move/connection.h"
#include "verbs_library/move/settings.h"
#include "verbs_library/shadow/devices.h"
#include "verbs_library/shadow/log.h"

namespace ppmr::verbs {
namespace {

std::string path_of(const EndId& end) { return settings().directory + "/" + file_name_of(end); }

bool write_file(int fd, const std::string& text) {
  return write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

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

// The names of a queue pair with this number: all GIDs of the device, each once.
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

// Whether a name belongs to a process of this machine that was killed: nothing listens any more
// where it said it does. One that moves says so before it stops listening.
bool is_stale(const EndId& name, const ControlAddress& own) {
  const auto file = read_end_file(name);
  if (!file) return false;
  if (file->moves || file->control.ip != own.ip || file->control.port == own.port) return false;
  const int fd = start_connect(file->control);
  if (fd < 0) return errno == ECONNREFUSED;
  constexpr int kLimitMs = 1000;  // to an own address it is decided at once
  pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
  poll(&ready, 1, kLimitMs);
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  close(fd);
  return error == ECONNREFUSED;
}

int create_file(const EndId& name, const ControlAddress& own) {
  const std::string path = path_of(name);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = open(path.c_str(), kFlags, 0600);
  if (fd < 0 && errno == EEXIST) {
    const bool is_free = is_stale(name, own) && unlink(path.c_str()) == 0;
    errno = EEXIST;
    if (is_free) fd = open(path.c_str(), kFlags, 0600);
  }
  return fd;
}

// A program that ends without destroying its queue pairs.
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
  if (settings().directory.empty()) return true;
  const std::string text = format(file_of(qp, control, qpn, false));
  for (const EndName& name : names_of(*qp.owner, qpn)) {
    const std::string path = path_of(name.end);
    const int fd = create_file(name.end, control);
    if (fd < 0 && errno != EEXIST) {
      // The queue pair works, and only a move is impossible, which release says.
      log("create %s: %s", path.c_str(), std::strerror(errno));
      continue;
    }
    if (fd < 0) {
      remove_names(qp);
      return false;
    }
    if (!write_file(fd, text)) log("write %s: %s", path.c_str(), std::strerror(errno));
    close(fd);
    qp.names.push_back(name);
  }
  return true;
}

void publish_names(const Qp& qp, const ControlAddress& control, bool moves) {
  const uint32_t qpn = qp.real ? qp.real->qp_num : qp.qp_base.qp_num;
  const std::string text = format(file_of(qp, control, qpn, moves));
  for (const EndName& name : qp.names) {
    const std::string path = path_of(name.end);
    const std::string fresh = path + "." + std::to_string(getpid());
    const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    const bool written = fd >= 0 && write_file(fd, text);
    if (fd >= 0) close(fd);
    // A reader finds the old file or the new one.
    if (!written || rename(fresh.c_str(), path.c_str()) != 0)
      log("write %s: %s", path.c_str(), std::strerror(errno));
  }
}

void remove_names(Qp& qp) {
  for (const EndName& name : qp.names) unlink(path_of(name.end).c_str());
  qp.names.clear();
}

std::optional<EndFile> read_end_file(const EndId& end) {
  if (settings().directory.empty()) return std::nullopt;
  const int fd = open(path_of(end).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct stat status = {};
  char text[kEndFileBytesMax + 1];
  ssize_t size = -1;
  // A file of another user could lead the connection to that user.
  if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
      (status.st_uid == geteuid() || status.st_uid == 0))
    size = read(fd, text, sizeof(text));
  close(fd);
  if (size <= 0) return std::nullopt;
  return parse_end_file({text, static_cast<size_t>(size)});
}

}  // namespace ppmr::verbs
