// The code that both mounts share in their use of libfuse: serving a mount, the operations that do
// not differ (readdir, statfs, xattr, forget), replies, and the exception guard.
//
// An operation of a mount returns success if it has replied to its request or parked it, else the
// error to reply with. Guarded<operation>::call is the function for libfuse's table.
#pragma once

#include <fuse3/fuse_lowlevel.h>

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/without_exceptions.h"
#include "mount/fuse_mount.h"
#include "mount/kernel_names.h"
#include "mount/node_view.h"
#include "mount/request_loop.h"

namespace ppmr {

// The object that fuse_file_info::fh refers to. The FUSE request RELEASE destroys it; the end of
// the mount destroys all that are left.
class OpenHandle {
 public:
  virtual ~OpenHandle() = default;
};

// Returns the present entries of an open directory, with "." and "..". The function object lives
// until the directory is closed.
using ListDirectory = std::function<std::vector<DirectoryEntry>()>;

struct ServeEvents {
  std::function<void()> mounted;  // requests are being served
  std::function<void()> ending;   // must unblock waiting handlers: the loop waits for them
  std::function<void()> ended;    // no handler runs now; parked requests can still be answered
};

// Serves one mount. The userdata of a FUSE session has the type FrontEnd*. Threads: one thread
// calls serve(); any thread may call the other members.
class FrontEnd {
 public:
  virtual ~FrontEnd() = default;

  // Mounts with `mount_it`, and serves until the mount is unmounted or stop() is called. Errors:
  // those of FuseMount::create(); EAGAIN when no thread can be started.
  Status serve(const std::function<Result<FuseChannel>()>& mount_it,
               const fuse_lowlevel_ops& operations, RequestBuffers& buffers,
               RequestLoopOptions loop_options, const ServeEvents& events);
  void stop();
  // A name in the root directory, and all below it, were removed without a request of the kernel.
  void name_removed(const std::string& name) { kernel_names_.removed(name); }

  // ---- For the shared operations.
  virtual Result<mode_t> mode_of(uint64_t inode) = 0;  // including the file type
  virtual Result<ListDirectory> open_directory(uint64_t inode) = 0;
  // The kernel drops `lookups` references to an inode.
  virtual void forget(uint64_t inode, uint64_t lookups) noexcept = 0;
  virtual wire::Space space() = 0;

  // ---- Open handles. add_handle() returns the value for fuse_file_info::fh.
  uint64_t add_handle(std::unique_ptr<OpenHandle> handle);
  void close_handle(uint64_t fh);
  template <typename Handle>
  static Handle& handle_at(uint64_t fh) {
    return static_cast<Handle&>(*reinterpret_cast<OpenHandle*>(fh));
  }

 private:
  Mutex loop_mutex_;
  RequestLoop* loop_ PPMR_GUARDED_BY(loop_mutex_) = nullptr;  // null when not serving
  bool stopping_ PPMR_GUARDED_BY(loop_mutex_) = false;

  KernelNames kernel_names_;

  Mutex handles_mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<OpenHandle>> handles_
      PPMR_GUARDED_BY(handles_mutex_);
};

inline FrontEnd& front_end_of(fuse_req_t request) {
  return *static_cast<FrontEnd*>(fuse_req_userdata(request));
}

// Adds access, opendir, readdir, releasedir, statfs, getxattr, listxattr and forget.
void add_shared_operations(fuse_lowlevel_ops& operations);
// Sets the limits of a connection, for the operation `init`. A write or a read carries at most
// `request_max_bytes`.
void set_connection_limits(fuse_conn_info& connection, size_t request_max_bytes);

// ---- Replies. reply_error() turns an Error into the errno that the caller gets.

void reply_error(fuse_req_t request, const Error& error);
// Replies with success if `status` has a value; else returns the error.
Status reply_done(fuse_req_t request, Status status = {});
// Replies with the opened handle. The handle lives until close_handle().
Status reply_open(fuse_req_t request, fuse_file_info& file, std::unique_ptr<OpenHandle> handle);

// The time for which the kernel may use a reply without a new request, in seconds. 0: not at all.
struct Validity {
  double name_s = 0;
  double attributes_s = 0;
};
// The validity of attributes and names that change only through this kernel.
inline constexpr double kAlwaysValidSeconds = 86'400;

// The caller has already increased the look-up count of the node in `view` by one for this reply.
fuse_entry_param entry_of(const NodeView& view, const Validity& validity);
void reply_entry(fuse_req_t request, const NodeView& view, const Validity& validity);
void reply_attributes(fuse_req_t request, const NodeView& view, const Validity& validity);

// ---- Exceptions.

// Wraps an operation for libfuse's table: its error or exception becomes the reply. The operation
// must not throw after it has replied.
template <auto operation>
struct Guarded;
template <typename... Arguments, Status (*operation)(fuse_req_t, Arguments...)>
struct Guarded<operation> {
  static void call(fuse_req_t request, Arguments... arguments) {
    const Status status = without_exceptions([&] { return operation(request, arguments...); });
    if (!status) reply_error(request, status.error());
  }
};

}  // namespace ppmr
