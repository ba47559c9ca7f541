// Obtains the request that runc sends to CRIU to dump a container. Only runc knows what CRIU must
// know about a container: its mounts, its control group, the namespaces that it joins.
//
//   this process --- starts ----------------> runc checkpoint --leave-running
//                                               | starts "criu swrk"
//                <-- request, runc's socket -- ppmr criu-for-runc: stays until all is over
//   this process --- request --> its own CRIU (criu_session.h)
//                <-- response --
//                --- response -> runc
//
// runc starts before the container is frozen, and waits. runc gets no notification of CRIU: after
// post-dump it would note that the container has left.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/criu_socket.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds `ppmr criu-for-runc`, which runc starts in place of CRIU.
void add_criu_for_runc_command(CLI::App& app, int& exit_code);

struct RuncDumpOptions {
  std::string container;
  std::string criu;
  std::string images;  // a directory
  std::string work;    // a directory: logs, the script that runc starts, a socket
  std::vector<std::string> criu_options;
};

// Threads: one. The destructor ends runc.
class RuncDump {
 public:
  // Blocks until runc asks CRIU for the dump. Errors: ECHILD with the first error of runc;
  // ETIMEDOUT; EINVAL for an option that runc does not pass on.
  static Result<RuncDump> start(const RuncDumpOptions& options);

  // Returns the request that runc made. This process sends it to a CRIU of its own, which takes the
  // directories from it.
  const std::string& request() const { return request_; }
  // Passes CRIU's response to runc, and waits until runc has ended. If runc fails now, the dump is
  // still valid.
  void finish(const std::string& response);

 private:
  RuncDump() = default;
  Result<CriuMessage> await_message(int listener, const std::string& log);
  Status take(CriuMessage message, const RuncDumpOptions& options);

  std::string request_;
  UniqueFd images_;
  UniqueFd work_;
  UniqueFd starter_;  // to `ppmr criu-for-runc`, which ends when this is closed
  UniqueFd runc_socket_;
  std::unique_ptr<CriuProcess> runc_;  // last: it ends first
};

}  // namespace ppmr
