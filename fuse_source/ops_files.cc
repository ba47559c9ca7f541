// open, write, read, flush, fsync, release, fallocate.
#include <fcntl.h>
#include <linux/falloc.h>

#include "fuse_source/operations.h"
#include "mount/fuse/caller.h"

namespace ppmr::source_operations_detail {
namespace {

// `fh` of a handle tells whether it counts as a writer: whoever creates a file does, as its size is
// open until then.
bool for_writing(const fuse_file_info* file) { return file->fh != 0; }

void open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  SourceMount& mount = mount_of(request);
  file->fh = (file->flags & O_ACCMODE) != O_RDONLY ? 1 : 0;
  if (auto status = mount.opened(node, for_writing(file)); !status) {
    return reply_error(request, status.error());
  }
  file->direct_io = 1;
  if (fuse_reply_open(request, file) != 0) mount.released(node, for_writing(file));
}

void write(fuse_req_t request, fuse_ino_t inode, const char* data, size_t size, off_t offset,
           fuse_file_info*) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  CutChunks cut;
  const auto status = mount_of(request).write(
      node, std::as_bytes(std::span(data, size)), static_cast<uint64_t>(offset),
      [request] { return request_is_futile(request); }, cut);
  // The writer goes on while the checksum is computed.
  if (status) {
    fuse_reply_write(request, size);
  } else {
    reply_error(request, status.error());
  }
  cut.announce(*node->checkpoint->outlet);
}

void read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  const auto bytes = mount_of(request).read(node, static_cast<uint64_t>(offset), size,
                                            [request] { return request_is_futile(request); });
  if (!bytes) return reply_error(request, bytes.error());
  fuse_reply_buf(request, reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

// close(2) and fsync(2) return when the target has verified every byte of the file.
void drain(fuse_req_t request, fuse_ino_t inode) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  reply_status(request,
               mount_of(request).drain(node, [request] { return request_is_futile(request); }));
}

void flush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  if (for_writing(file)) return drain(request, inode);
  fuse_reply_err(request, 0);
}

void fsync(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info*) { drain(request, inode); }

void fsyncdir(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) { fuse_reply_err(request, 0); }

void release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  mount_of(request).released(node, for_writing(file));
  fuse_reply_err(request, 0);
}

void fallocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length,
               fuse_file_info*) {
  const SourceNodePointer node = node_of(request, inode);
  if (!node) return;
  if (mode != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) {
    fuse_reply_err(request, EOPNOTSUPP);
    return;
  }
  reply_status(request, mount_of(request).punch_hole(
                            node, static_cast<uint64_t>(offset), static_cast<uint64_t>(length),
                            [request] { return request_is_futile(request); }));
}

}  // namespace

void add_file_operations(fuse_lowlevel_ops& operations) {
  operations.open = open;
  operations.write = write;
  operations.read = read;
  operations.flush = flush;
  operations.fsync = fsync;
  operations.fsyncdir = fsyncdir;
  operations.release = release;
  operations.fallocate = fallocate;
}

}  // namespace ppmr::source_operations_detail
