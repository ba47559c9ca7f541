// The FUSE operations of the target mount, by the file that holds them. An operation answers its
// request, or returns the error to answer with, or has parked it.
#pragma once

#include <fuse3/fuse_lowlevel.h>

#include "fuse_target/store/image_tree.h"
#include "fuse_target/store/parking_lot.h"
#include "fuse_target/upstream.h"

namespace ppmr {

// What the operations work on: the userdata of the FUSE session. Constant.
struct TargetMountContext {
  ImageTree& tree;
  ParkingLot& parking;
  Upstream& upstream;
  StoreMemory& memory;
  bool consume = false;
  bool wait_for_files = false;
};

const fuse_lowlevel_ops& target_operations();

namespace target_operations_detail {

inline TargetMountContext& context_of(fuse_req_t request) {
  return *static_cast<TargetMountContext*>(fuse_req_userdata(request));
}

// The one place where errors become what a caller sees.
void reply_error(fuse_req_t request, const Error& error);
struct stat attributes_of(const ImageTree::View& view);
Result<StoredNodePointer> node_of(fuse_req_t request, fuse_ino_t inode);
Result<StoredNodePointer> directory_of(fuse_req_t request, fuse_ino_t inode);

// Parks the request until `subject` or the node's checkpoint changes; `retry` answers it if it can.
void park(fuse_req_t request, const void* subject, const StoredNodePointer& node,
          std::function<bool()> retry);

// Puts an operation into libfuse's table: its error is answered, and no exception passes.
template <auto operation>
struct Answered;
template <typename... Arguments, Status (*operation)(fuse_req_t, Arguments...)>
struct Answered<operation> {
  static void call(fuse_req_t request, Arguments... arguments) {
    Status status;
    try {
      status = operation(request, arguments...);
    } catch (const std::bad_alloc&) {
      status = failure(ENOMEM, "out of memory");
    } catch (const std::exception& exception) {
      status = failure(EIO, exception.what());
    }
    if (!status) reply_error(request, status.error());
  }
};

void add_name_operations(fuse_lowlevel_ops& operations);       // ops_names.cc
void add_attribute_operations(fuse_lowlevel_ops& operations);  // ops_attributes.cc
void add_read_operations(fuse_lowlevel_ops& operations);       // ops_read.cc
void add_remove_operations(fuse_lowlevel_ops& operations);     // ops_remove.cc
void add_refused_operations(fuse_lowlevel_ops& operations);    // ops_refused.cc

}  // namespace target_operations_detail
}  // namespace ppmr
