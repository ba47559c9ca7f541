#include "mount/control/control_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "mount/control/json_text.h"
#include "mount/control/line_socket.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
constexpr std::string_view kSuffix = ".sock";
// A socket is bound under this suffix and renamed once it listens, so that whoever looks for stale
// sockets never takes a new-born one for dead.
constexpr std::string_view kUnborn = ".new";

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX};
  if (path.size() >= sizeof(address.sun_path)) {
    return failure(ENAMETOOLONG,
                   "control socket " + path + ": the path is too long for a Unix socket");
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

// Private to us: others could otherwise put their own sockets, or links, in there.
Status make_private_directory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("make directory", directory);
  }
  struct stat status;
  if (lstat(directory.c_str(), &status) != 0) return system_failure("look at", directory);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
    return failure(
        EPERM, directory + " is not a directory of this user: control sockets cannot live there");
  }
  if ((status.st_mode & 0777) != 0700 && chmod(directory.c_str(), 0700) != 0) {
    return system_failure("make private", directory);
  }
  return {};
}

std::string random_name() {
  unsigned char bytes[8];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) std::abort();  // cannot fail for 8 bytes
  std::string name;
  for (unsigned char byte : bytes) name += fmt::format("{:02x}", byte);
  return name;
}

bool nobody_listens(const std::string& path) {
  const auto address = address_of(path);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!address || !socket) return false;
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) !=
             0 &&
         errno == ECONNREFUSED;
}

// Daemons that were killed leave their sockets behind.
void remove_stale_sockets(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string path = entry.path();
    if (path.ends_with(kSuffix) && nobody_listens(path)) unlink(path.c_str());
  }
}

bool may_ask(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == 0 || peer.uid == geteuid();
}

}  // namespace

std::string control_directory() {
  if (geteuid() == 0) return "/run/ppmr";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/ppmr";
  return "/tmp/ppmr-" + std::to_string(geteuid());
}

json refusal(const Error& error) {
  return {{"ok", false}, {"errno", error.errno_value}, {"error", error.message}};
}

Result<std::unique_ptr<ControlServer>> ControlServer::create(ControlServerOptions options) {
  if (options.directory.empty()) options.directory = control_directory();
  if (Status made = make_private_directory(options.directory); !made) return failure(made.error());
  remove_stale_sockets(options.directory);

  const std::string name = options.directory + "/" + random_name();
  const std::string unborn = name + std::string(kUnborn);
  const std::string path = name + std::string(kSuffix);
  const auto address = address_of(path.size() > unborn.size() ? path : unborn);
  if (!address) return failure(address.error());
  const auto bind_address = address_of(unborn);

  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return system_failure("make control socket", path);
  UniqueFd end(eventfd(0, EFD_CLOEXEC));
  if (!end) return system_failure("make eventfd for", path);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&*bind_address),
           sizeof(*bind_address)) != 0) {
    return system_failure("bind control socket", path);
  }
  if (chmod(unborn.c_str(), 0600) != 0 || listen(listener.get(), 64) != 0 ||
      rename(unborn.c_str(), path.c_str()) != 0) {
    const int errno_value = errno;
    unlink(unborn.c_str());
    return system_failure("listen on control socket", path, errno_value);
  }
  return std::unique_ptr<ControlServer>(
      new ControlServer(std::move(options), path, std::move(listener), std::move(end)));
}

ControlServer::ControlServer(ControlServerOptions options, std::string path, UniqueFd listener,
                             UniqueFd end)
    : options_(std::move(options)),
      path_(std::move(path)),
      listener_(std::move(listener)),
      end_(std::move(end)) {}

ControlServer::~ControlServer() {
  unlink(path_.c_str());
  eventfd_write(end_.get(), 1);
  if (acceptor_.joinable()) acceptor_.join();
  for (Client& client : clients_) shutdown(client.socket.get(), SHUT_RDWR);
  for (Client& client : clients_) client.thread.join();
}

void ControlServer::serve(Handler handler) {
  handler_ = std::move(handler);
  acceptor_ = std::thread([this] { accept_clients(); });
}

void ControlServer::accept_clients() {
  pollfd fds[] = {{listener_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}};
  for (;;) {
    if (poll(fds, 2, -1) < 0) continue;  // EINTR
    if (fds[1].revents != 0) return;
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    clients_.remove_if([](Client& client) {
      if (!client.done) return false;
      client.thread.join();
      return true;
    });
    if (socket) {
      admit(std::move(socket));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
      pollfd pause{end_.get(), POLLIN, 0};  // no use in spinning until somebody closes a file
      poll(&pause, 1, 100);
    }
  }
}

void ControlServer::admit(UniqueFd socket) {
  const auto refuse = [&](int errno_value, const char* why) {
    (void)write_line(socket.get(), json_text(refusal({errno_value, why})),
                     std::chrono::steady_clock::now());
  };
  if (!may_ask(socket.get()))
    return refuse(EPERM, "only root and the user of this mount may ask its daemon");
  if (clients_.size() >= options_.clients_max)
    return refuse(EAGAIN, "too many clients at once: try again");
  Client& client = clients_.emplace_back();
  client.socket = std::move(socket);
  client.thread = std::thread([this, &client] {
    converse(client.socket.get());
    shutdown(client.socket.get(), SHUT_RDWR);  // its number stays taken until it is joined
    client.done = true;
  });
}

void ControlServer::converse(int socket) {
  std::string pending;
  std::string line;
  for (;;) {
    const Status got = read_line(socket, pending, line, options_.request_max_bytes,
                                 std::chrono::steady_clock::now() + options_.client_patience);
    const bool too_long = !got && got.error().errno_value == EMSGSIZE;
    if (!got && !too_long) return;
    const json reply = too_long ? refusal(got.error()) : answer(line);
    const std::string text = json_text(reply);
    if (!write_line(socket, text, std::chrono::steady_clock::now() + options_.client_patience))
      return;
    if (too_long) return;
  }
}

json ControlServer::answer(const std::string& line) {
  const json request = json::parse(line, nullptr, false);
  if (!request.is_object()) return refusal({EINVAL, "a request is one JSON object on a line"});
  try {
    return handler_(request);
  } catch (const json::exception& error) {
    return refusal({EINVAL, std::string("malformed request: ") + error.what()});
  }
}

}  // namespace ppmr
