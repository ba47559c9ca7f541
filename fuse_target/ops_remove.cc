// unlink, rmdir: the only changes that the target mount allows, and only of what its source cannot
// write any more. Taking the top entry away tells the source.
#include "fuse_target/operations.h"

namespace ppmr::target_operations_detail {
namespace {

Status remove(fuse_req_t request, fuse_ino_t parent, const char* name, bool directory_wanted) {
  auto directory = directory_of(request, parent);
  if (!directory) return failure(directory.error());
  TargetMountContext& context = context_of(request);
  auto removed = context.tree.remove_entry(*directory, name, directory_wanted);
  if (!removed) return failure(removed.error());
  if (*removed) context.upstream.tell_removed(**removed);
  fuse_reply_err(request, 0);
  return {};
}

Status unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  return remove(request, parent, name, /*directory_wanted=*/false);
}

Status rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  return remove(request, parent, name, /*directory_wanted=*/true);
}

}  // namespace

void add_remove_operations(fuse_lowlevel_ops& operations) {
  operations.unlink = Answered<unlink>::call;
  operations.rmdir = Answered<rmdir>::call;
}

}  // namespace ppmr::target_operations_detail
