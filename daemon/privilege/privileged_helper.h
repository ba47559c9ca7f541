// The data daemon's end of the connection to its privileged helper. The helper is a process `ppmr
// privileged-helper` that keeps the rights with which the daemon was started. It does the few steps
// of the daemon that need these rights (helper_messages.h). The helper is a separate program, not a
// fork: it shares no memory and no address layout with the daemon. It ends when the daemon ends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/unnamed_file.h"
#include "daemon/privilege/helper_messages.h"
#include "daemon/privilege/kept_files.h"
#include "mount/fuse_channel.h"

namespace ppmr {

// All paths and addresses that the helper ever uses. The daemon sets them before it has a
// connection, and they do not change.
struct HelperOptions {
  std::string mountpoint;  // all paths are absolute
  std::string control_socket;
  bool allow_other = false;
  std::string spill_directory;  // empty: no spill files
  std::string keep_directory;   // empty: no kept checkpoints
  // The files that the daemon reads or appends to when it reloads.
  std::vector<std::string> read_files;
  std::string append_file;  // empty: none
  // Arguments of ppmr that start an agent; the helper adds --fd and --peer. Empty: no agents.
  std::vector<std::string> agent;
  // Arguments of ppmr that settle interrupted migrations. The helper runs ppmr with them when the
  // mount is ready, and then every 20 s. Empty: never.
  std::vector<std::string> settle;
  // Arguments of ppmr that write the epochs of protected processes to the disk. The helper runs
  // ppmr with them, and with --parent, from when the mount is ready until the helper ends. Empty:
  // never.
  std::vector<std::string> epochs;
  std::string connect_to;      // HOST:PORT of the target; empty: the helper does not connect
  bool loopback_only = false;  // the helper refuses other addresses
  bool near_target = false;    // is_near(): connections use the congestion control cubic
  bool background = false;     // the helper leaves the terminal when the mount is ready
};

// Threads: any. One request runs at a time.
class PrivilegedHelper final : public KeptFiles {
 public:
  // Errors: those of spawn().
  static Result<std::shared_ptr<PrivilegedHelper>> start(const HelperOptions& options);
  // `files`: read_files and append_file of the options, in this order.
  explicit PrivilegedHelper(UniqueFd socket, std::vector<std::string> files = {})
      : files_(std::move(files)), socket_(std::move(socket)) {}

  // Requests to the helper. Their errors: those of the helper; EPIPE if it has ended.
  Result<FuseChannel> mount();  // unmount() uses this object, so it must live until then
  Result<UniqueFd> start_agent(const std::string& peer);
  Result<UnnamedFile> create_spill_file();
  // Opens a file of HelperOptions, read_files or append_file. Errors: EPERM for another file.
  Result<UniqueFd> open_again(const std::string& path);
  // Connects to an address of the target. Has the type Dial (tcp_connection.h).
  Result<UniqueFd> dial(size_t number);
  // Requests about kept checkpoints, see KeptFiles.
  Result<UniqueFd> open_kept_directory() override;
  Result<UniqueFd> create_kept(int32_t number) override;
  Result<UniqueFd> publish_kept(int32_t number) override;
  Result<UniqueFd> open_kept(int32_t number) override;
  Result<UniqueFd> remove_kept(int32_t number) override;
  void remove_control_socket();
  // Returns whether a signal is ending this process. Returns false if the helper cannot find out.
  bool is_dying(pid_t process);

 private:
  struct Answer {
    int32_t number = 0;
    std::vector<UniqueFd> descriptors;
  };
  Result<UniqueFd> ask_for_file(HelperOperation operation, int32_t number = 0);
  Result<Answer> ask(HelperOperation operation, int32_t number = 0, const std::string& text = "",
                     size_t descriptors = 0);

  const std::vector<std::string> files_;
  Mutex mutex_;
  const UniqueFd socket_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
