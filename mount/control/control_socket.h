// The daemon's half of the control socket: a Unix stream socket through which `ppmr commit`,
// `restart` and `status` speak with the daemon of a mount, one JSON object a line, request then
// answer. The client's half is control_client.h; mount/README.md has the requests.
//
// Not the mount itself (a magic file, an ioctl or an xattr): a mount whose peer is stalled may make
// its callers wait, and the status of exactly that mount is what people want to see.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

struct ControlServerOptions {
  std::string directory;  // empty: control_directory()
  size_t clients_max = 256;
  size_t request_max_bytes = 64 << 10;
  std::chrono::milliseconds client_patience{5000};  // to send a whole request, to take an answer
};

// Where daemons of this user keep their sockets: /run/ppmr for root, else $XDG_RUNTIME_DIR/ppmr, or
// /tmp/ppmr-UID where there is none.
std::string control_directory();

// Threads: created, served and destroyed by one thread. The handler is called on a thread per
// client; it may wait.
class ControlServer {
 public:
  // Answers {"ok":true,...} or refusal(...). What it throws as nlohmann::json::exception (a field
  // is missing or of the wrong type) is answered with EINVAL.
  using Handler = std::function<nlohmann::json(const nlohmann::json& request)>;

  // Listens in the directory (made 0700; the socket is 0600) under a random name, and removes
  // sockets there that nobody listens on. Clients wait until serve(). Errors: of the file system.
  static Result<std::unique_ptr<ControlServer>> create(ControlServerOptions options = {});
  // Removes the socket and ends the connections. Handlers that wait have to be woken by their owner
  // before: the destructor waits for them.
  ~ControlServer();

  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  void serve(Handler handler);
  const std::string& path() const { return path_; }

 private:
  struct Client {
    UniqueFd socket;
    std::atomic<bool> done{false};
    std::thread thread;
  };
  ControlServer(ControlServerOptions options, std::string path, UniqueFd listener, UniqueFd end);
  void accept_clients();
  void admit(UniqueFd socket);
  void converse(int socket);
  nlohmann::json answer(const std::string& line);

  const ControlServerOptions options_;
  const std::string path_;
  const UniqueFd listener_;
  const UniqueFd end_;  // eventfd: written once by the destructor
  Handler handler_;     // constant once serve() was called

  std::list<Client> clients_;  // of the accepting thread; the destructor's once that has ended
  std::thread acceptor_;
};

// {"ok":false,"errno":..,"error":..}
nlohmann::json refusal(const Error& error);

}  // namespace ppmr
