#include "mount/front_end.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cassert>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

constexpr unsigned int kBackgroundRequestsMax = 64;

// ---- Shared operations

struct DirectoryHandle final : OpenHandle {
  explicit DirectoryHandle(ListDirectory list) : list(std::move(list)) {}
  const ListDirectory list;
  // The entries of the directory at the time of the last readdir with offset 0. Later calls
  // continue in this list, so they skip no entry if another process removes entries in between.
  std::vector<DirectoryEntry> entries;
};

// The kernel sends ACCESS only to a mount where it does not check permissions itself: one that only
// root can access (fuse_channel.cc).
Status access(fuse_req_t request, fuse_ino_t inode, int mask) {
  const auto mode = front_end_of(request).mode_of(inode);
  if (!mode) return failure(mode.error());
  const bool executable = S_ISDIR(*mode) || (*mode & 0111) != 0;
  if ((mask & X_OK) != 0 && !executable) return failure(EACCES, "not executable");
  return reply_done(request);
}

Status opendir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  auto list = front_end_of(request).open_directory(inode);
  if (!list) return failure(list.error());
  return reply_open(request, *file, std::make_unique<DirectoryHandle>(std::move(*list)));
}

Status readdir(fuse_req_t request, fuse_ino_t, size_t size, off_t offset, fuse_file_info* file) {
  auto& handle = FrontEnd::handle_at<DirectoryHandle>(file->fh);
  if (offset == 0) handle.entries = handle.list();
  std::vector<char> reply(size);
  size_t used = 0;
  for (auto next = static_cast<size_t>(offset); next < handle.entries.size(); ++next) {
    const DirectoryEntry& entry = handle.entries[next];
    struct stat attributes {};
    attributes.st_ino = entry.inode;
    attributes.st_mode = file_type_bits(entry.type);
    const size_t length =
        fuse_add_direntry(request, reply.data() + used, size - used, entry.name.c_str(),
                          &attributes, static_cast<off_t>(next + 1));
    if (length > size - used) break;
    used += length;
  }
  fuse_reply_buf(request, reply.data(), used);
  return {};
}

Status releasedir(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
  front_end_of(request).close_handle(file->fh);
  return reply_done(request);
}

Status statfs(fuse_req_t request, fuse_ino_t) {
  const wire::Space space = front_end_of(request).space();
  struct statvfs result {};
  result.f_bsize = result.f_frsize = 4096;
  result.f_blocks = space.total_bytes / result.f_frsize;
  result.f_bfree = result.f_bavail = space.free_bytes / result.f_frsize;
  result.f_namemax = wire::kNameMaxBytes;
  fuse_reply_statfs(request, &result);
  return {};
}

// Without getxattr and listxattr the kernel returns EOPNOTSUPP, which some tools report as an
// error.
Status getxattr(fuse_req_t, fuse_ino_t, const char*, size_t) {
  return failure(ENODATA, "no such attribute");
}

Status listxattr(fuse_req_t request, fuse_ino_t, size_t size) {
  if (size == 0) {
    fuse_reply_xattr(request, 0);
  } else {
    fuse_reply_buf(request, nullptr, 0);
  }
  return {};
}

void forget(fuse_req_t request, fuse_ino_t inode, uint64_t lookups) {
  front_end_of(request).forget(inode, lookups);
  fuse_reply_none(request);
}

}  // namespace

void add_shared_operations(fuse_lowlevel_ops& operations) {
  operations.access = Guarded<access>::call;
  operations.opendir = Guarded<opendir>::call;
  operations.readdir = Guarded<readdir>::call;
  operations.releasedir = Guarded<releasedir>::call;
  operations.statfs = Guarded<statfs>::call;
  operations.getxattr = Guarded<getxattr>::call;
  operations.listxattr = Guarded<listxattr>::call;
  operations.forget = forget;  // libfuse calls it for FORGET and for each entry of BATCH_FORGET
}

void set_connection_limits(fuse_conn_info& connection, size_t request_max_bytes) {
  connection.max_write = static_cast<unsigned int>(request_max_bytes);
  connection.max_background = kBackgroundRequestsMax;
  connection.time_gran = 1;
  // Splicing would hide the bytes from the checksum; the writeback cache would copy them twice.
  connection.want &= ~static_cast<unsigned int>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
                                                FUSE_CAP_SPLICE_MOVE | FUSE_CAP_WRITEBACK_CACHE);
}

// ---- Replies

void reply_error(fuse_req_t request, const Error& error) {
  if (error.errno_value == EIO || error.errno_value == ENOSPC) spdlog::warn("{}", error.message);
  fuse_reply_err(request, error.errno_value);
}

Status reply_done(fuse_req_t request, Status status) {
  if (status) fuse_reply_err(request, 0);
  return status;
}

Status reply_open(fuse_req_t request, fuse_file_info& file, std::unique_ptr<OpenHandle> handle) {
  FrontEnd& front_end = front_end_of(request);
  file.fh = front_end.add_handle(std::move(handle));
  // If the reply fails, the caller is gone, and the kernel will send no release.
  if (fuse_reply_open(request, &file) != 0) front_end.close_handle(file.fh);
  return {};
}

fuse_entry_param entry_of(const NodeView& view, const Validity& validity) {
  fuse_entry_param entry{};
  entry.ino = view.inode;
  entry.attr = stat_of(view);
  entry.entry_timeout = validity.name_s;
  entry.attr_timeout = validity.attributes_s;
  return entry;
}

void reply_entry(fuse_req_t request, const NodeView& view, const Validity& validity) {
  FrontEnd& front_end = front_end_of(request);  // the reply may free the request
  const fuse_entry_param entry = entry_of(view, validity);
  if (fuse_reply_entry(request, &entry) != 0) front_end.forget(view.inode, 1);
}

void reply_attributes(fuse_req_t request, const NodeView& view, const Validity& validity) {
  const struct stat attributes = stat_of(view);
  fuse_reply_attr(request, &attributes, validity.attributes_s);
}

// ---- FrontEnd

Status FrontEnd::serve(const std::function<Result<FuseChannel>()>& mount_it,
                       const fuse_lowlevel_ops& operations, RequestBuffers& buffers,
                       RequestLoopOptions loop_options, const ServeEvents& events) {
  auto mount = FuseMount::create(mount_it, operations, this);
  if (!mount) return failure(mount.error());
  {
    RequestLoop loop((*mount)->session(), buffers, std::move(loop_options));
    if (auto started = loop.start(); !started) return started;
    {
      MutexLock lock(loop_mutex_);
      assert(loop_ == nullptr && "two loops serve one mount");
      loop_ = &loop;
      if (stopping_) loop.stop();
    }
    kernel_names_.begin((*mount)->session());
    events.mounted();
    loop.run(events.ending);
    MutexLock lock(loop_mutex_);
    assert(loop_ == &loop && "two loops serve one mount");
    loop_ = nullptr;
  }
  (*mount)->stop();
  events.ended();
  kernel_names_.end();
  // After the unmount the kernel sends no release for handles that are still open.
  MutexLock lock(handles_mutex_);
  handles_.clear();
  return {};
}

void FrontEnd::stop() {
  MutexLock lock(loop_mutex_);
  stopping_ = true;
  if (loop_ != nullptr) loop_->stop();
}

uint64_t FrontEnd::add_handle(std::unique_ptr<OpenHandle> handle) {
  const auto fh = reinterpret_cast<uint64_t>(handle.get());
  MutexLock lock(handles_mutex_);
  assert(handle != nullptr && !handles_.contains(fh) && "two open handles have the same number");
  handles_[fh] = std::move(handle);
  return fh;
}

void FrontEnd::close_handle(uint64_t fh) {
  decltype(handles_)::node_type closed;  // the handle is destroyed without the lock
  MutexLock lock(handles_mutex_);
  closed = handles_.extract(fh);
}

}  // namespace ppmr
