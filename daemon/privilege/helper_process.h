// `ppmr privileged-helper`: the process behind PrivilegedHelper. It has one thread, and serves one
// request at a time. It uses only the paths, addresses and arguments of its command line, so a
// request can make it do only this:
//
//   mount, unmount            the mount point, once each
//   start an agent            runs this program with the given arguments and the name of the peer
//   (without a request)       settles interrupted migrations, and writes epochs to the disk: runs
//                             this program with the given arguments
//   create a spill file       without a name, in the given directory
//   kept checkpoints          creates, renames, opens and removes files with names of eight digits,
//                             in the given directory
//   open a file again         one of the given files, to read it or, the audit file, to append
//   remove the control socket
//   is this process dying     reads /proc/PID/status
//   dial                      connects to the given address of the target
//
// So a data daemon that an attacker controls can still start agents in the name of any peer, and
// can send them all that this peer may send.
#pragma once

#include <chrono>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/privilege/helper_messages.h"
#include "daemon/privilege/kept_files.h"
#include "mount/fuse_channel.h"

namespace CLI {
class App;
}  // namespace CLI

namespace ppmr {

void add_privileged_helper_command(CLI::App& app, int& exit_code);

// Threads: one.
class HelperProcess {
 public:
  struct Options {
    int fd = 3;
    MountOptions mount;
    std::string spill_directory;
    std::string keep_directory;
    std::vector<std::string> read_files;
    std::string append_file;
    std::vector<std::string> agent;
    std::vector<std::string> settle;
    std::vector<std::string> epochs;
    std::string connect_to;
    bool loopback_only = false;
    bool near_target = false;
    bool background = false;
  };
  explicit HelperProcess(Options options)
      : options_(std::move(options)), kept_files_(options_.keep_directory) {}

  // Serves until the daemon closes its end. Returns an exit code.
  int run();

 private:
  struct Outcome {
    int32_t number = 0;
    std::vector<UniqueFd> descriptors;
  };
  bool serve_one();
  Result<Outcome> perform(const HelperRequest& request);
  Result<Outcome> mount();
  Result<Outcome> unmount();
  Result<Outcome> start_agent(const std::string& peer);
  Result<Outcome> create_spill_file();
  Result<Outcome> use_kept_file(const HelperRequest& request);
  Result<Outcome> open_again(int32_t number);
  Result<Outcome> dial(int32_t number);
  void settle_when_due();
  void start_epoch_writer_when_due();
  void reap_children();

  const Options options_;
  KeptFilesIn kept_files_;
  bool mounted_once_ = false;
  // The mount, without the descriptor of /dev/fuse, which the daemon has.
  FuseChannel channel_;
  std::map<pid_t, std::string> agents_;  // key: pid of the agent; value: its peer
  pid_t settler_ = 0;                    // 0: none is at work
  std::chrono::steady_clock::time_point settled_at_;
  pid_t epoch_writer_ = 0;  // 0: none is at work
  std::chrono::steady_clock::time_point epoch_writer_at_;
};

}  // namespace ppmr
