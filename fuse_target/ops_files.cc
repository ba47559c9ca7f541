// open, read, release. A read has one of three outcomes:
//
// clang-format off
//   all of its bytes have arrived   -> one writev(2) from the blocks that hold them
//   some have not                   -> parked; the target pulls announced bytes first, and requests
//                                      the others from the source; it retries the read when bytes
//                                      of the file land or its size becomes final
//   the checkpoint has failed       -> EIO, never fewer bytes: if a read in the middle of a file
//                                      returned 0 bytes, CRIU would loop forever or take that for
//                                      the end of the file
// clang-format on
#include <fcntl.h>

#include <memory>

#include "fuse_target/operations.h"

namespace ppmr::target_operations_detail {
namespace {

struct OpenFile final : OpenHandle {
  explicit OpenFile(ImageTree& tree) : tree(tree) {}
  ~OpenFile() override {
    if (node) tree.release_file(*node);
  }
  ImageTree& tree;
  StoredNodePointer node;  // null until the file is open
};

Status open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) {
    return failure(EROFS, "open for writing: the target mount is read-only");
  }
  if (!(*node)->is_file()) return failure(EISDIR, "open: not a file");
  if ((*node)->checkpoint->failed()) {
    return failure(EIO,
                   "open '" + target_of(request).tree.place(**node).name +
                       "': its checkpoint has failed: " + (*node)->checkpoint->error().message);
  }
  auto file = std::make_unique<OpenFile>(target_of(request).tree);
  if (auto opened = file->tree.open_file(**node); !opened) return opened;
  file->node = *node;
  // Direct I/O, because the page cache would have a second copy, and outdated sizes.
  info->direct_io = 1;
  return reply_open(request, *info, std::move(file));
}

// Replies to the read if its bytes have arrived or can no longer arrive. Returns whether it
// replied.
bool try_read(fuse_req_t request, const StoredNode& node, uint64_t offset, size_t size) {
  // Reused, because its vectors keep their capacity: no allocation per read.
  thread_local ReadPlan plan;
  auto ready = node.file->read(offset, size, plan);
  // This check must follow file->read(). If the checkpoint failed before that call, its memory was
  // already freed, and the plan has zeros instead of the file's bytes.
  if (node.checkpoint->failed()) {
    plan.clear();
    fuse_reply_err(request, EIO);
    return true;
  }
  if (ready && *ready == ImageFile::Readiness::kWait) return false;
  Status status = ready ? plan.make_ready() : Status(failure(ready.error()));
  if (status) {
    const auto buffers = plan.buffers();
    fuse_reply_iov(request, buffers.data(), static_cast<int>(buffers.size()));
  } else {
    reply_error(request, status.error());
  }
  plan.clear();
  return true;
}

Status read(fuse_req_t request, fuse_ino_t, size_t size, off_t offset, fuse_file_info* info) {
  const StoredNodePointer& node = FrontEnd::handle_at<OpenFile>(info->fh).node;
  const auto begin = static_cast<uint64_t>(offset);
  TargetFrontEnd& target = target_of(request);
  target.memory.note_use();
  if (try_read(request, *node, begin, size)) return {};
  // A copy, because the request and its file may be freed after the request is parked.
  const NodeKey key = node->key;
  const Range missing = node->file->missing(begin, size);
  park(request, node->file.get(), node,
       [request, node, begin, size] { return try_read(request, *node, begin, size); });
  // If these requests fail, the bytes still arrive, only later.
  (void)without_exceptions([&]() -> Status {
    target.upstream.prioritize(key, begin, size);
    if (!missing.empty()) target.upstream.want(key, missing.begin, missing.length());
    return {};
  });
  return {};
}

Status release(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  target_of(request).close_handle(info->fh);
  return reply_done(request);
}

}  // namespace

void add_file_operations(fuse_lowlevel_ops& operations) {
  operations.open = Guarded<open>::call;
  operations.read = Guarded<read>::call;
  operations.release = Guarded<release>::call;
}

}  // namespace ppmr::target_operations_detail
