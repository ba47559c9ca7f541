// A CRIU that dumps a tree and lets it run on, driven by this process over CRIU's RPC.
//
//   this process --- request ---> criu swrk: freezes the tree, writes the images
//                <-- post-dump -- waits, with the tree
//                --- go on -----> lets the tree run on
//
// No decision depends on the dump, so there is no relay and no record (migration/relay): if this
// process dies, CRIU finds its socket closed, fails, and lets the tree run on.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "migration/protect/runc_dump.h"
#include "restart_loader/criu/criu_process.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

// Adds `ppmr dumping-criu`: prepares this process for a dump, and becomes CRIU.
void add_dumping_criu_command(CLI::App& app, int& exit_code);

struct DumpTimes {
  int64_t freeze_began_ns = 0;  // CLOCK_REALTIME
  int64_t runs_again_ns = 0;    // the tree ran again at this time or before
};

// The steps while CRIU holds the tree. `while_frozen` must be set; the others may be empty. If a
// step fails, the dump fails.
struct DumpSteps {
  std::function<Status()> on_network_lock;  // before its connections are read
  std::function<Status()> while_frozen;     // after CRIU has written the images
  std::function<void()> on_network_unlock;  // before the tree runs on, also after a failure
};

// Threads: one.
class CriuSession {
 public:
  // Starts CRIU ahead of time. `work`: a directory for its log and configuration. `patience`: the
  // longest time between two messages of CRIU. `configuration`: lines of a configuration file,
  // which CRIU reads before any request.
  static Result<CriuSession> start(const std::string& criu, const std::string& work,
                                   std::chrono::milliseconds patience,
                                   const std::string& configuration = "");

  // Dumps the tree. The tree runs on, also after an error. Errors: ECHILD with CRIU's first error;
  // ETIMEDOUT: CRIU was silent, and was killed; those of the steps.
  Result<DumpTimes> dump(pid_t root, const std::string& images,
                         const std::vector<std::string>& options, const DumpSteps& steps);
  // Does the same with the request that runc made, and then passes the response to runc.
  Result<DumpTimes> dump(RuncDump& runc, const DumpSteps& steps);

 private:
  CriuSession() = default;
  Result<DumpTimes> converse(const std::string& request, const DumpSteps& steps,
                             const std::function<void(const std::string&)>& on_response);
  Status await_message() const;
  Error explain();

  std::string work_;
  std::chrono::milliseconds patience_{0};
  UniqueFd socket_;
  std::unique_ptr<CriuProcess> process_;
};

}  // namespace ppmr
