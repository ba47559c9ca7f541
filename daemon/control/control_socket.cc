#include "daemon/control/control_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/json_text.h"
#include "base/line_socket.h"
#include "base/parse_json.h"
#include "base/whole_file.h"
#include "daemon/control/endpoint_file.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
constexpr std::string_view kSuffix = ".sock";
// The limit for clients of root on a public socket. It is separate, so that other users cannot take
// all places.
constexpr size_t kClientsOfRootMax = 64;
// The server binds its socket to a name with this suffix, and renames it after listen(2). Otherwise
// another daemon that removes stale sockets could remove this one between bind(2) and listen(2).
constexpr std::string_view kUnfinished = ".new";

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX};
  if (path.size() >= sizeof(address.sun_path)) {
    return failure(ENAMETOOLONG, "control socket " + path + ": path too long for a Unix socket");
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

// Makes the directory, and checks that it is private: other users must not add sockets or links.
Status make_private_directory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("create directory", directory);
  }
  struct stat status;
  if (lstat(directory.c_str(), &status) != 0)
    return system_failure("read the attributes of", directory);
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
    return failure(
        EPERM,
        directory + ": not a directory of this user, so ppmr creates no control socket there");
  }
  if ((status.st_mode & 0777) != 0700 && chmod(directory.c_str(), 0700) != 0) {
    return system_failure("chmod 0700", directory);
  }
  return {};
}

std::string random_name() {
  unsigned char bytes[8];
  // getrandom(2) cannot fail for 8 bytes.
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) std::abort();
  std::string name;
  for (unsigned char byte : bytes) name += fmt::format("{:02x}", byte);
  return name;
}

bool is_stale(const std::string& path) {
  const auto address = address_of(path);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!address || !socket) return false;
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) !=
             0 &&
         errno == ECONNREFUSED;
}

// Removes the sockets of daemons that were killed before they could remove them.
void remove_stale_sockets(const std::string& directory) {
  for (const auto& entry : list_directory(directory).value_or(DirectoryEntries())) {
    const std::string path = entry.path();
    if (!path.ends_with(kSuffix) || !is_stale(path)) continue;
    remove_endpoint(path);
    unlink(path.c_str());
  }
}

Result<ControlClient> identify(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return system_failure("identify", "a client of the control socket");
  }
  return ControlClient{peer.pid, peer.uid, peer.gid};
}

// Returns the path at which this daemon will listen. Creates the directory of the path, and refuses
// a public path at which another daemon listens.
Result<std::string> choose_path(const ControlServerOptions& options) {
  if (options.public_path.empty()) {
    if (Status made = make_private_directory(options.directory); !made) {
      return failure(made.error());
    }
    remove_stale_sockets(options.directory);
    return options.directory + "/" + random_name() + std::string(kSuffix);
  }
  if (access(options.public_path.c_str(), F_OK) == 0 && !is_stale(options.public_path)) {
    return failure(EADDRINUSE, "control socket " + options.public_path +
                                   ": another daemon listens there, or the file is not a socket: "
                                   "stop that daemon, or remove the file");
  }
  return options.public_path;
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

json answer_of(const Status& done) { return done ? json{{"ok", true}} : refusal(done.error()); }

Result<std::unique_ptr<ControlServer>> ControlServer::create(ControlServerOptions options) {
  if (options.directory.empty()) options.directory = control_directory();
  const auto chosen = choose_path(options);
  if (!chosen) return failure(chosen.error());
  const std::string& path = *chosen;
  const std::string unfinished = path + std::string(kUnfinished);
  if (const auto address = address_of(path); !address) return failure(address.error());
  const auto bind_address = address_of(unfinished);
  if (!bind_address) return failure(bind_address.error());

  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return system_failure("create the control socket", path);
  UniqueFd end(eventfd(0, EFD_CLOEXEC));
  if (!end) return system_failure("create an eventfd for", path);
  if (!options.public_path.empty()) unlink(unfinished.c_str());
  const mode_t mode = options.public_path.empty() ? 0600 : 0666;
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&*bind_address),
           sizeof(*bind_address)) != 0) {
    return system_failure("bind the control socket", path);
  }
  if (chmod(unfinished.c_str(), mode) != 0 || listen(listener.get(), 64) != 0 ||
      rename(unfinished.c_str(), path.c_str()) != 0) {
    const int errno_value = errno;
    unlink(unfinished.c_str());
    return system_failure("listen on the control socket", path, errno_value);
  }
  return std::unique_ptr<ControlServer>(
      new ControlServer(std::move(options), path, std::move(listener), std::move(end)));
}

ControlServer::ControlServer(ControlServerOptions options, std::string path, UniqueFd listener,
                             UniqueFd end)
    : options_(std::move(options)),
      path_(std::move(path)),
      owner_(geteuid()),
      listener_(std::move(listener)),
      end_(std::move(end)) {}

ControlServer::~ControlServer() {
  if (options_.remove) {
    options_.remove(path_);
  } else {
    unlink(path_.c_str());
  }
  eventfd_write(end_.get(), 1);
  if (acceptor_.joinable()) acceptor_.join();
  for (Client& client : clients_) shutdown(client.socket.get(), SHUT_RDWR);
  for (Client& client : clients_) client.thread.join();
}

void ControlServer::serve(Handler handler) {
  serve([handler = std::move(handler)](const json& request, const ControlClient&,
                                       PassedDescriptors&) { return handler(request); });
}

void ControlServer::serve(ClientHandler handler) {
  handler_ = std::move(handler);
  acceptor_ = std::thread([this] { accept_clients(); });
}

void ControlServer::accept_clients() {
  pollfd fds[] = {{listener_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}};
  for (;;) {
    if (poll(fds, 2, -1) < 0) continue;  // EINTR
    if (fds[1].revents != 0) return;
    clients_.remove_if([](Client& client) {
      if (!client.done) return false;
      client.thread.join();
      return true;
    });
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket) {
      try {
        add_client(std::move(socket));
      } catch (const std::exception& exception) {
        spdlog::error("control socket: dropped a client: {}", exception.what());
      }
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
      pollfd pause{end_.get(), POLLIN, 0};  // the next accept4() would also fail, so wait
      poll(&pause, 1, 100);
    }
  }
}

void ControlServer::add_client(UniqueFd socket) {
  const auto refuse = [&](int fd, int errno_value, const char* why) {
    (void)write_line(fd, json_text(refusal({errno_value, why})), std::chrono::steady_clock::now());
  };
  const auto identity = identify(socket.get());
  if (!identity) return refuse(socket.get(), EPERM, "permission denied: unknown user");
  if (const char* reason = reason_to_refuse(*identity)) {
    return refuse(socket.get(), options_.public_path.empty() ? EPERM : EAGAIN, reason);
  }
  const bool is_reserved = !options_.public_path.empty() && identity->uid == 0;
  const size_t limit = options_.clients_max + (is_reserved ? kClientsOfRootMax : 0);
  if (clients_.size() >= limit) {
    return refuse(socket.get(), EAGAIN, "too many clients: try again");
  }
  Client& client = clients_.emplace_back();
  client.socket = std::move(socket);
  client.identity = *identity;
  try {
    client.thread = std::thread([this, &client] {
      try {
        serve_client(client);
      } catch (const std::exception& exception) {
        spdlog::error("control socket: dropped a client: {}", exception.what());
      }
      // accept_clients() closes the socket after it has joined this thread.
      shutdown(client.socket.get(), SHUT_RDWR);
      client.done = true;
    });
  } catch (const std::system_error&) {
    const UniqueFd refused = std::move(client.socket);
    clients_.pop_back();
    refuse(refused.get(), EAGAIN, "cannot start a thread for this client: try again");
  }
}

// Returns why the server refuses the client; null: it does not.
const char* ControlServer::reason_to_refuse(const ControlClient& client) const {
  if (client.uid == 0 || client.uid == owner_) return nullptr;
  if (options_.public_path.empty()) {
    return "permission denied: not root and not the user of this mount";
  }
  const auto of_user = std::count_if(clients_.begin(), clients_.end(), [&](const Client& other) {
    return other.identity.uid == client.uid && !other.done;
  });
  const bool too_many = static_cast<size_t>(of_user) >= options_.clients_per_user_max;
  return too_many ? "too many clients of this user: try again" : nullptr;
}

void ControlServer::serve_client(const Client& client) {
  const int socket = client.socket.get();
  const auto deadline = [this] {
    return std::chrono::steady_clock::now() + options_.client_timeout;
  };
  std::string pending;
  std::string line;
  // A public socket accepts no descriptors, because any user could make the daemon hold many of
  // them.
  const bool takes_descriptors = options_.public_path.empty();
  for (;;) {
    PassedDescriptors passed;
    const Status read = read_line(socket, pending, line, options_.request_max_bytes, deadline(),
                                  takes_descriptors ? &passed.received : nullptr);
    const bool too_long = !read && read.error().errno_value == EMSGSIZE;
    if (!read && !too_long) return;
    const json reply = too_long ? refusal(read.error()) : answer(line, client.identity, passed);
    const Status sent = write_line(socket, json_text(reply), deadline(), passed.to_send);
    if (!sent || too_long) return;
  }
}

json ControlServer::answer(const std::string& line, const ControlClient& client,
                           PassedDescriptors& passed) {
  const json request = parse_json(line);
  if (!request.is_object())
    return refusal({EINVAL,
                    "malformed request: not a JSON object on one line, or with a number out of "
                    "range (restart the daemon with this ppmr)"});
  try {
    return handler_(request, client, passed);
  } catch (const json::exception& error) {
    return refusal({EINVAL, std::string("malformed request: ") + error.what()});
  } catch (const std::bad_alloc&) {
    return refusal({ENOMEM, "the daemon is out of memory"});
  } catch (const std::exception& error) {
    return refusal({EIO, std::string("the daemon failed: ") + error.what()});
  }
}

}  // namespace ppmr
