// The daemon's half of the control socket. This is a Unix stream socket on which `ppmr commit`,
// `restart`, `status` and other commands send requests to the daemon of a mount, or to the job
// agent of a host. A request is one JSON object on a line, and an answer is, too. control_client.h
// is the client's half. README.md in this folder lists the requests.
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
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

struct ControlServerOptions {
  std::string directory;  // empty: control_directory()
  // If not empty: the path of a socket that all users may connect to, instead of a socket in
  // `directory`. The handler decides what each user may do.
  std::string public_path;
  // Removes the socket from its directory at the end. Empty: the server calls unlink(2).
  std::function<void(const std::string& path)> remove;
  size_t clients_max = 256;
  size_t clients_per_user_max = 256;  // for each user but root
  size_t request_max_bytes = 64 << 10;
  // The time limit for a client to send a whole request, and the time limit for the client to
  // receive the answer.
  std::chrono::milliseconds client_timeout{5000};
};

// The client that sent a request. The kernel supplies these numbers (SO_PEERCRED).
struct ControlClient {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

// The file descriptors that come with a request, and those that go with its answer: at most
// kDescriptorsMax of each.
struct PassedDescriptors {
  std::vector<UniqueFd> received;  // not received on a public socket
  std::vector<UniqueFd> to_send;
};

// Returns the directory of the sockets of this user's daemons: /run/ppmr for root;
// $XDG_RUNTIME_DIR/ppmr for other users, or /tmp/ppmr-UID if that variable is not set.
std::string control_directory();

// Threads: created, served and destroyed by one thread. Each client has a thread that calls the
// handler, which may block.
class ControlServer {
 public:
  // Returns {"ok":true,...} or refusal(...). Exceptions become refusals: EINVAL for
  // nlohmann::json::exception (a field is missing or has the wrong type), ENOMEM for
  // std::bad_alloc, EIO for others.
  using Handler = std::function<nlohmann::json(const nlohmann::json& request)>;
  // For a handler that needs the identity of the client, or passes descriptors.
  using ClientHandler = std::function<nlohmann::json(
      const nlohmann::json& request, const ControlClient& client, PassedDescriptors& passed)>;

  // Creates the directory (mode 0700) and in it a listening socket (mode 0600) with a random name.
  // Removes the sockets of dead daemons. Clients block until serve() is called. Errors: EADDRINUSE
  // if another daemon listens on the public path; the errors of the system calls.
  static Result<std::unique_ptr<ControlServer>> create(ControlServerOptions options = {});
  // Removes the socket, closes the connections and waits for the handlers to return. The owner must
  // first make handlers that block return.
  ~ControlServer();

  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Throws std::system_error when no thread can be started.
  void serve(Handler handler);
  void serve(ClientHandler handler);
  const std::string& path() const { return path_; }

 private:
  struct Client {
    UniqueFd socket;
    ControlClient identity;
    std::atomic<bool> done{false};
    std::thread thread;
  };
  ControlServer(ControlServerOptions options, std::string path, UniqueFd listener, UniqueFd end);
  void accept_clients();
  void add_client(UniqueFd socket);
  void serve_client(const Client& client);
  nlohmann::json answer(const std::string& line, const ControlClient& client,
                        PassedDescriptors& passed);
  const char* reason_to_refuse(const ControlClient& client) const;

  const ControlServerOptions options_;
  const std::string path_;
  const uid_t owner_;  // the user who created this server
  const UniqueFd listener_;
  const UniqueFd end_;     // eventfd: written once by the destructor
  ClientHandler handler_;  // constant after serve()

  std::list<Client> clients_;  // only the thread acceptor_ uses it; after its end, the destructor
  std::thread acceptor_;
};

// Returns {"ok":false,"errno":..,"error":..}.
nlohmann::json refusal(const Error& error);

// Returns {"ok":true} for a success, and refusal() for an error.
nlohmann::json answer_of(const Status& done);

}  // namespace ppmr
