// The operations open, write, read, flush, fsync, release and fallocate.
#include <fcntl.h>
#include <linux/falloc.h>

#include "fuse_source/operations.h"

namespace ppmr::source_operations_detail {
namespace {

// `fh` is 1 for a handle that counts as a writer. The creator's handle always counts, even if it is
// read-only: the size of a new file is not final until its creator has closed it.
bool for_writing(const fuse_file_info* file) { return file->fh != 0; }

Status open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  SourceMount& mount = mount_of(request);
  file->fh = (file->flags & O_ACCMODE) != O_RDONLY ? 1 : 0;
  if (auto opened = mount.opened(*node, for_writing(file)); !opened) return opened;
  file->direct_io = 1;
  file->noflush = (*node)->checkpoint->defers_errors;
  if (fuse_reply_open(request, file) != 0) mount.released(*node, for_writing(file));
  return {};
}

Status write(fuse_req_t request, fuse_ino_t inode, const char* data, size_t size, off_t offset,
             fuse_file_info*) {
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  CutChunks cut;
  Result<size_t> written = 0;
  const Status status = without_exceptions([&]() -> Status {
    written = mount_of(request).write(*node, std::as_bytes(std::span(data, size)),
                                      static_cast<uint64_t>(offset), interruption_of(request), cut);
    if (!written) return failure(written.error());
    return {};
  });
  if (status) {
    fuse_reply_write(request, *written);  // the caller need not wait for the checksum in announce()
  } else {
    reply_error(request, status.error());
  }
  // Announces the completed chunks even if the write failed: later chunks of the file cannot be
  // announced before them.
  const Status announced = without_exceptions([&]() -> Status {
    cut.announce(*(*node)->checkpoint->outlet);
    return {};
  });
  if (!announced) (*node)->checkpoint->error->set(announced.error());
  return {};
}

Status read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  const auto bytes =
      mount_of(request).read(*node, static_cast<uint64_t>(offset), size, interruption_of(request));
  if (!bytes) return failure(bytes.error());
  fuse_reply_buf(request, reinterpret_cast<const char*>(bytes->data()), bytes->size());
  return {};
}

// fsync(2) returns when the target has verified every byte of the file.
Status fsync(fuse_req_t request, fuse_ino_t inode, int, fuse_file_info*) {
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  return reply_done(request, mount_of(request).drain(*node, interruption_of(request)));
}

// close(2) of a file longer than a chunk returns when the target has verified every byte. So tools
// that check only close(2) report failures, and little is left to transfer for the seal, which has
// a time limit. close(2) of a shorter file does not wait, because a checkpoint has thousands of
// such files: their errors surface at a later call, at fsync(2) or at the seal. If the seal reports
// the errors (defer-errors), the kernel (since Linux 5.16) sends no flush at all.
Status flush(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  if (!for_writing(file)) return reply_done(request);
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  if ((*node)->checkpoint->defers_errors) return reply_done(request);
  if ((*node)->writer->size_bytes() > mount_of(request).chunk_size_bytes()) {
    return fsync(request, inode, 0, file);
  }
  (*node)->writer->flush();
  return reply_done(request, (*node)->checkpoint->status());
}

Status fsyncdir(fuse_req_t request, fuse_ino_t, int, fuse_file_info*) {
  return reply_done(request);
}

Status release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file) {
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  mount_of(request).released(*node, for_writing(file));
  return reply_done(request);
}

Status fallocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length,
                 fuse_file_info*) {
  const auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  if (mode != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) {
    return failure(EOPNOTSUPP, "fallocate: only FALLOC_FL_PUNCH_HOLE is supported");
  }
  return reply_done(request, mount_of(request).punch_hole(*node, static_cast<uint64_t>(offset),
                                                          static_cast<uint64_t>(length),
                                                          interruption_of(request)));
}

}  // namespace

void add_file_operations(fuse_lowlevel_ops& operations) {
  operations.open = Guarded<open>::call;
  operations.write = Guarded<write>::call;
  operations.read = Guarded<read>::call;
  operations.flush = Guarded<flush>::call;
  operations.fsync = Guarded<fsync>::call;
  operations.fsyncdir = Guarded<fsyncdir>::call;
  operations.release = Guarded<release>::call;
  operations.fallocate = Guarded<fallocate>::call;
}

}  // namespace ppmr::source_operations_detail
