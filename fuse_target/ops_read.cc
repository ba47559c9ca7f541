// open, read, release. A read goes one of three ways:
//
//   all of it has arrived      -> one writev(2) from the blocks it lies in
//   some of it is still to come -> parked, and asked for first at the source; tried again when
//                                  something of the file lands or its size becomes final
//   the checkpoint has failed  -> EIO, never fewer bytes: CRIU would loop for ever on 0 bytes in
//   the
//                                 middle, and take an early end for the end
#include <fcntl.h>

#include <memory>

#include "fuse_target/operations.h"
#include "third_party/spdlog.h"

namespace ppmr::target_operations_detail {
namespace {

struct OpenFile {  // lives in fuse_file_info::fh
  StoredNodePointer node;
};

Status open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  auto node = node_of(request, inode);
  if (!node) return failure(node.error());
  if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) {
    return failure(EROFS, "the target mount takes no writes");
  }
  if (!(*node)->is_file()) return failure(EISDIR, "not a file");
  if ((*node)->checkpoint->failed()) return failure(EIO, "the checkpoint has failed");
  ImageTree& tree = context_of(request).tree;
  auto file = std::make_unique<OpenFile>(OpenFile{*node});
  if (auto opened = tree.open_file(**node); !opened) return opened;
  info->fh = reinterpret_cast<uint64_t>(file.get());
  info->direct_io = 1;  // the page cache would hold a second copy, and its sizes would lag behind
  if (fuse_reply_open(request, info) == 0) {
    file.release();
  } else {
    tree.release_file(**node);
  }
  return {};
}

// Answers the read if that can be done now.
bool try_read(fuse_req_t request, const StoredNode& node, uint64_t offset, size_t size) {
  thread_local ReadPlan plan;  // keeps its vectors: no allocation per read
  auto ready = node.file->read(offset, size, plan);
  // Asked after the bytes: a failed checkpoint has given its memory back, and reads as holes.
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
  const StoredNodePointer& node = reinterpret_cast<OpenFile*>(info->fh)->node;
  const auto begin = static_cast<uint64_t>(offset);
  TargetMountContext& context = context_of(request);
  context.memory.note_use();
  if (try_read(request, *node, begin, size)) return {};
  const NodeKey key = node->key;  // the request and its file may be gone once it is parked
  park(request, node->file.get(), node,
       [request, node, begin, size] { return try_read(request, *node, begin, size); });
  context.upstream.hurry(key, begin, size);
  return {};
}

Status release(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  std::unique_ptr<OpenFile> file(reinterpret_cast<OpenFile*>(info->fh));
  context_of(request).tree.release_file(*file->node);
  fuse_reply_err(request, 0);
  return {};
}

}  // namespace

void add_read_operations(fuse_lowlevel_ops& operations) {
  operations.open = Answered<open>::call;
  operations.read = Answered<read>::call;
  operations.release = Answered<release>::call;
}

}  // namespace ppmr::target_operations_detail
