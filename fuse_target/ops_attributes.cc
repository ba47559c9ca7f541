// The operation getattr.
#include "fuse_target/operations.h"

namespace ppmr::target_operations_detail {
namespace {

// CRIU takes the size of its buffers from fstat of the images that it opens, so the size of an open
// file must be final. `ls` may show the growing size of a file that no process has open. CRIU does
// not use the size of page images, and waiting for their size would delay the restore until all
// memory has arrived.
bool waits_for_size(const TargetFrontEnd& target, const StoredNode& node) {
  if (!node.is_file() || target.consume || node.file->facts().closed) return false;
  if (!target.tree.is_open(node)) return false;
  const ImageTree::Place place = target.tree.place(node);
  return place.in_directory && place.name.rfind("pages-", 0) != 0;
}

void reply_present_attributes(fuse_req_t request, const StoredNode& node) {
  // Determined before the view: if the checkpoint is sealed in between, an older size must not
  // count as valid.
  const Validity validity = validity_of(node);
  reply_attributes(request, target_of(request).tree.view(node), validity);
}

Status getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  auto found = node_of(request, inode);
  if (!found) return failure(found.error());
  const StoredNodePointer node = *found;
  const TargetFrontEnd& target = target_of(request);
  // A failed checkpoint receives no more bytes: reply without waiting, so that the file can be
  // removed.
  if (!waits_for_size(target, *node) || node->checkpoint->failed()) {
    reply_present_attributes(request, *node);
    return {};
  }
  park(request, node->file.get(), node, [request, node, &target] {
    if (node->checkpoint->failed()) {
      fuse_reply_err(request, EIO);
    } else if (waits_for_size(target, *node)) {
      return false;
    } else {
      reply_present_attributes(request, *node);
    }
    return true;
  });
  return {};
}

}  // namespace

void add_attribute_operations(fuse_lowlevel_ops& operations) {
  operations.getattr = Guarded<getattr>::call;
}

}  // namespace ppmr::target_operations_detail
