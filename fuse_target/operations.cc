#include "fuse_target/operations.h"

namespace ppmr {
namespace target_operations_detail {
namespace {

constexpr size_t kReadMaxBytes = size_t{1} << 20;

// libfuse holds a lock of the request when it calls this function, and may call it before
// fuse_req_interrupt_func() has returned.
void interrupted(fuse_req_t request, void* lot) {
  static_cast<ParkingLot*>(lot)->interrupted(request);
}

void init(void* userdata, fuse_conn_info* connection) {
  auto& target = static_cast<TargetFrontEnd&>(*static_cast<FrontEnd*>(userdata));
  set_connection_limits(*connection, kReadMaxBytes);  // max_write also limits reads
  // With FUSE_CAP_ASYNC_DIO the kernel sends the parts of one read in any order, but `--consume`
  // requires sequential reads.
  if (target.consume) connection->want &= ~static_cast<unsigned int>(FUSE_CAP_ASYNC_DIO);
}

// Refuses the request: only its source changes a checkpoint.
template <typename... Arguments>
void refuse(fuse_req_t request, Arguments...) {
  fuse_reply_err(request, EROFS);
}

void add_refused_operations(fuse_lowlevel_ops& operations) {
  operations.setattr = refuse;
  operations.mknod = refuse;
  operations.mkdir = refuse;
  operations.symlink = refuse;
  operations.rename = refuse;
  operations.link = refuse;
  operations.create = refuse;
  operations.write = refuse;
  operations.fallocate = refuse;
  operations.setxattr = refuse;
  operations.removexattr = refuse;
}

Result<StoredNodePointer> find_node(const ImageTree& tree, uint64_t inode) {
  StoredNodePointer node = tree.find(inode);
  if (!node) return failure(ESTALE, "find inode " + std::to_string(inode) + ": it was removed");
  return node;
}

Result<StoredNodePointer> find_directory(const ImageTree& tree, uint64_t inode) {
  auto node = find_node(tree, inode);
  if (node && !(*node)->is_directory()) {
    return failure(ENOTDIR, "find inode " + std::to_string(inode) + ": it is not a directory");
  }
  return node;
}

}  // namespace

Result<StoredNodePointer> node_of(fuse_req_t request, fuse_ino_t inode) {
  return find_node(target_of(request).tree, inode);
}

Result<StoredNodePointer> directory_of(fuse_req_t request, fuse_ino_t inode) {
  return find_directory(target_of(request).tree, inode);
}

Validity validity_of(const StoredNode& node) {
  if (!node.checkpoint || node.key == node.checkpoint->top) return {};
  if (node.checkpoint->state() != StoredState::kSealed) return {};
  return {.name_s = kAlwaysValidSeconds, .attributes_s = kAlwaysValidSeconds};
}

void park(fuse_req_t request, const void* subject, const StoredNodePointer& node,
          std::function<bool()> retry) {
  ParkingLot& lot = target_of(request).parking;
  ParkedRequest parked;
  parked.id = request;
  parked.caller = fuse_req_ctx(request)->pid;
  parked.subject = subject;
  parked.checkpoint = node->checkpoint.get();
  // Other threads run the retry, such as the thread that lands a chunk. An exception must not end
  // these threads. The lambda's copy of `node` keeps the node alive.
  parked.retry = [request, node, retry = std::move(retry)] {
    bool replied = false;
    const Status tried = without_exceptions([&]() -> Status {
      replied = retry();
      return {};
    });
    if (!tried) reply_error(request, tried.error());
    return replied || !tried;
  };
  parked.refuse = [request](int errno_value) { fuse_reply_err(request, errno_value); };
  // The parking lot calls on_parked before the first retry, because a retry that has replied may
  // have freed the request.
  parked.on_parked = [request, &lot] { fuse_req_interrupt_func(request, interrupted, &lot); };
  lot.park(std::move(parked));
}

}  // namespace target_operations_detail

Result<mode_t> TargetFrontEnd::mode_of(uint64_t inode) {
  const auto node = target_operations_detail::find_node(tree, inode);
  if (!node) return failure(node.error());
  return stat_of(tree.view(**node)).st_mode;
}

Result<ListDirectory> TargetFrontEnd::open_directory(uint64_t inode) {
  auto node = target_operations_detail::find_directory(tree, inode);
  if (!node) return failure(node.error());
  return [this, node = *node] { return tree.entries(node); };
}

void TargetFrontEnd::forget(uint64_t inode, uint64_t lookups) noexcept {
  tree.forget_inode(inode, lookups);
}

const fuse_lowlevel_ops& target_operations() {
  static const fuse_lowlevel_ops table = [] {
    using namespace target_operations_detail;
    fuse_lowlevel_ops operations{};
    operations.init = init;
    add_shared_operations(operations);
    add_name_operations(operations);
    add_attribute_operations(operations);
    add_file_operations(operations);
    add_refused_operations(operations);
    return operations;
  }();
  return table;
}

}  // namespace ppmr
