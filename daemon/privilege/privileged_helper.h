// The data daemon's end of its privileged helper: a process `ppmr privileged-helper` that keeps the
// rights with which the daemon was started, and does for it the few things that need them
// (helper_messages.h). It is a program of its own, not a fork: it shares no memory and no addresses
// with the daemon. It ends with the daemon.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "base/unnamed_file.h"
#include "daemon/privilege/helper_messages.h"
#include "mount/fuse_channel.h"

namespace ppmr {

// All that the helper will ever use: set before the daemon has a connection, and constant.
struct HelperOptions {
  std::string mountpoint;  // all paths are absolute
  std::string control_socket;
  bool allow_other = false;
  std::string spill_directory;  // empty: no spill files
  // Files that the daemon reads or appends to when it reloads.
  std::vector<std::string> read_files;
  std::string append_file;  // empty: none
  // Arguments of ppmr that start an agent; the helper adds --fd and --peer. Empty: no agents.
  std::vector<std::string> agent;
  std::string connect_to;      // HOST:PORT of the target; empty: does not connect
  bool loopback_only = false;  // refuse other addresses
  bool near_target = false;    // is_near(): its connections use cubic
  bool background = false;     // leave the terminal when the mount is ready
};

// Threads: any; requests wait for each other.
class PrivilegedHelper {
 public:
  // Errors: those of spawn().
  static Result<std::shared_ptr<PrivilegedHelper>> start(const HelperOptions& options);
  // `files`: read_files and append_file of the options, in this order.
  explicit PrivilegedHelper(UniqueFd socket, std::vector<std::string> files = {})
      : files_(std::move(files)), socket_(std::move(socket)) {}

  // Errors of all requests: those of the helper; EPIPE if it has ended.
  Result<FuseChannel> mount();  // unmounts through this object, which must live until then
  Result<UniqueFd> start_agent(const std::string& peer);
  Result<UnnamedFile> create_spill_file();
  // One of the files of the options. Errors: EPERM for another one.
  Result<UniqueFd> open_again(const std::string& path);
  // A Dial (tcp_connection.h).
  Result<UniqueFd> dial(size_t number);
  void remove_control_socket();
  // False if it cannot be found out.
  bool is_dying(pid_t process);

 private:
  struct Answer {
    int32_t number = 0;
    std::vector<UniqueFd> descriptors;
  };
  Result<Answer> ask(HelperOperation operation, int32_t number = 0, const std::string& text = "",
                     size_t descriptors = 0);

  const std::vector<std::string> files_;
  std::mutex mutex_;
  const UniqueFd socket_;  // guarded by mutex_
};

}  // namespace ppmr
