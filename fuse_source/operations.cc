#include "fuse_source/operations.h"

namespace ppmr {
namespace source_operations_detail {

Result<SourceNodePointer> node_of(fuse_req_t request, fuse_ino_t inode) {
  SourceNodePointer node = mount_of(request).tree().find(inode);
  if (!node) return failure(ESTALE, "find inode " + std::to_string(inode) + ": it was removed");
  return node;
}

Validity validity_of(const SourceNode& node) {
  const bool is_top = node.checkpoint && node.checkpoint->top_node == node.id;
  const bool changes_size = is_top && node.type == wire::NodeType::kFile;
  return {.name_s = kAlwaysValidSeconds, .attributes_s = changes_size ? 0 : kAlwaysValidSeconds};
}

namespace {

void init(void* userdata, fuse_conn_info* connection) {
  auto& mount = static_cast<SourceMount&>(*static_cast<FrontEnd*>(userdata));
  set_connection_limits(*connection, mount.chunk_size_bytes());
  // Makes the kernel send the truncation of an open(2) as a separate setattr.
  connection->want &= ~static_cast<unsigned int>(FUSE_CAP_ATOMIC_O_TRUNC);
  mount.buffers().set_ready();
}

}  // namespace
}  // namespace source_operations_detail

const fuse_lowlevel_ops& source_operations() {
  static const fuse_lowlevel_ops table = [] {
    using namespace source_operations_detail;
    fuse_lowlevel_ops operations{};
    operations.init = init;
    add_shared_operations(operations);
    add_name_operations(operations);
    add_attribute_operations(operations);
    add_file_operations(operations);
    return operations;
  }();
  return table;
}

}  // namespace ppmr
