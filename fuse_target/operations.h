// The FUSE operations of the target mount, grouped by the file that defines them. See
// mount/front_end.h for what an operation returns.
#pragma once

#include <fuse3/fuse_lowlevel.h>

#include <functional>

#include "fuse_target/keep/keeper.h"
#include "fuse_target/store/image_tree.h"
#include "fuse_target/store/parking_lot.h"
#include "fuse_target/upstream.h"
#include "mount/front_end.h"

namespace ppmr {

// The objects that the operations use: the userdata of the FUSE session. Constant.
class TargetFrontEnd final : public FrontEnd {
 public:
  TargetFrontEnd(ImageTree& tree, ParkingLot& parking, Upstream& upstream, StoreMemory& memory,
                 Keeper* keeper, bool consume, bool wait_for_files)
      : tree(tree),
        parking(parking),
        upstream(upstream),
        memory(memory),
        keeper(keeper),
        consume(consume),
        wait_for_files(wait_for_files) {}

  Result<mode_t> mode_of(uint64_t inode) override;
  Result<ListDirectory> open_directory(uint64_t inode) override;
  void forget(uint64_t inode, uint64_t lookups) noexcept override;
  wire::Space space() override { return tree.space(); }

  ImageTree& tree;
  ParkingLot& parking;
  Upstream& upstream;
  StoreMemory& memory;
  Keeper* const keeper;  // null: no keep directory
  const bool consume;
  const bool wait_for_files;
};

const fuse_lowlevel_ops& target_operations();

namespace target_operations_detail {

inline TargetFrontEnd& target_of(fuse_req_t request) {
  return static_cast<TargetFrontEnd&>(front_end_of(request));
}

// Returns the node of `inode`. Errors: ESTALE.
Result<StoredNodePointer> node_of(fuse_req_t request, fuse_ino_t inode);
// Returns the directory of `inode`. Errors: also ENOTDIR.
Result<StoredNodePointer> directory_of(fuse_req_t request, fuse_ino_t inode);

// Returns a long validity for nodes of a sealed checkpoint, because only requests of the kernel
// change them. Returns zero for the top of a checkpoint, because `ppmr` can remove a checkpoint
// without a request of the kernel.
Validity validity_of(const StoredNode& node);

// Parks the request. Calls `retry` when `subject` or the node's checkpoint changes. `retry` replies
// to the request if it can, and returns whether it replied. It must not throw after its reply.
void park(fuse_req_t request, const void* subject, const StoredNodePointer& node,
          std::function<bool()> retry);

void add_name_operations(fuse_lowlevel_ops& operations);       // ops_names.cc
void add_attribute_operations(fuse_lowlevel_ops& operations);  // ops_attributes.cc
void add_file_operations(fuse_lowlevel_ops& operations);       // ops_files.cc

}  // namespace target_operations_detail
}  // namespace ppmr
