#include "fuse_source/operations.h"

#include "third_party/spdlog.h"

namespace ppmr {
namespace source_operations_detail {

void reply_error(fuse_req_t request, const Error& error) {
  if (error.errno_value == EIO || error.errno_value == ENOSPC) spdlog::warn("{}", error.message);
  fuse_reply_err(request, error.errno_value);
}

void reply_status(fuse_req_t request, const Status& status) {
  if (status) {
    fuse_reply_err(request, 0);
  } else {
    reply_error(request, status.error());
  }
}

fuse_entry_param entry_of(SourceMount& mount, const SourceNodePointer& node) {
  fuse_entry_param entry{};
  entry.ino = node->id;
  entry.attr = mount.tree().attributes(node);
  entry.attr_timeout = 0;
  entry.entry_timeout = kEntrySeconds;
  mount.tree().count_lookup(node);
  return entry;
}

void reply_entry(fuse_req_t request, const SourceNodePointer& node) {
  const fuse_entry_param entry = entry_of(mount_of(request), node);
  if (fuse_reply_entry(request, &entry) != 0) mount_of(request).tree().forget(node->id, 1);
}

SourceNodePointer node_of(fuse_req_t request, fuse_ino_t inode) {
  SourceNodePointer node = mount_of(request).tree().find(inode);
  if (!node) fuse_reply_err(request, ESTALE);
  return node;
}

namespace {

void init(void* userdata, fuse_conn_info* connection) {
  auto& mount = *static_cast<SourceMount*>(userdata);
  connection->max_write = static_cast<unsigned int>(mount.chunk_size_bytes());
  connection->max_background = 64;
  connection->time_gran = 1;
  // Splicing would hide the bytes from the checksum; the writeback cache would copy them twice; a
  // truncation is to come as a call of its own, not as a flag of open.
  connection->want &= ~static_cast<unsigned int>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
                                                 FUSE_CAP_SPLICE_MOVE | FUSE_CAP_WRITEBACK_CACHE |
                                                 FUSE_CAP_ATOMIC_O_TRUNC);
  mount.buffers().set_ready();
}

}  // namespace
}  // namespace source_operations_detail

const fuse_lowlevel_ops& source_operations() {
  static const fuse_lowlevel_ops table = [] {
    using namespace source_operations_detail;
    fuse_lowlevel_ops operations{};
    operations.init = init;
    add_name_operations(operations);
    add_attribute_operations(operations);
    add_directory_operations(operations);
    add_file_operations(operations);
    return operations;
  }();
  return table;
}

}  // namespace ppmr
