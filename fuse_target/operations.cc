#include "fuse_target/operations.h"

#include "third_party/spdlog.h"

namespace ppmr {
namespace target_operations_detail {
namespace {

timespec to_timespec(int64_t time_ns) {
  timespec time{time_ns / 1'000'000'000, time_ns % 1'000'000'000};
  if (time.tv_nsec < 0) --time.tv_sec, time.tv_nsec += 1'000'000'000;
  return time;
}

mode_t file_type(wire::NodeType type) {
  switch (type) {
    case wire::NodeType::kDirectory:
      return S_IFDIR;
    case wire::NodeType::kFile:
      return S_IFREG;
    case wire::NodeType::kSymlink:
      return S_IFLNK;
  }
  return S_IFREG;
}

// libfuse calls this with a lock of the request held, perhaps before fuse_req_interrupt_func()
// returns.
void interrupted(fuse_req_t request, void* lot) {
  static_cast<ParkingLot*>(lot)->interrupted(request);
}

void init(void* userdata, fuse_conn_info* connection) {
  auto& context = *static_cast<TargetMountContext*>(userdata);
  connection->max_write = uint32_t{1} << 20;  // what reads may be long, too
  connection->max_background = 64;            // asynchronous reads at the same time
  connection->time_gran = 1;
  // Splicing gains nothing for memory of ours; the writeback cache has nothing to write.
  connection->want &= ~static_cast<unsigned int>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
                                                 FUSE_CAP_SPLICE_MOVE | FUSE_CAP_WRITEBACK_CACHE);
  // Parts of one read in any order: not for a reader who must be strictly sequential.
  if (context.consume) connection->want &= ~static_cast<unsigned int>(FUSE_CAP_ASYNC_DIO);
}

}  // namespace

void reply_error(fuse_req_t request, const Error& error) {
  fuse_reply_err(request, error.errno_value);
}

struct stat attributes_of(const ImageTree::View& view) {
  struct stat attributes {};
  attributes.st_ino = view.inode;
  attributes.st_mode = file_type(view.type) | (view.attributes.mode & 07777);
  if (view.type == wire::NodeType::kSymlink) attributes.st_mode = S_IFLNK | 0777;
  attributes.st_nlink = view.linked ? 1 : 0;
  if (view.type == wire::NodeType::kDirectory) attributes.st_nlink = 2 + view.subdirectories;
  attributes.st_uid = view.attributes.uid;
  attributes.st_gid = view.attributes.gid;
  attributes.st_size = static_cast<off_t>(view.size_bytes);
  attributes.st_blocks = static_cast<blkcnt_t>((view.stored_bytes + 511) / 512);
  attributes.st_blksize = 1 << 20;
  attributes.st_atim = to_timespec(view.attributes.atime_ns);
  attributes.st_mtim = to_timespec(view.attributes.mtime_ns);
  attributes.st_ctim = to_timespec(view.ctime_ns);
  return attributes;
}

Result<StoredNodePointer> node_of(fuse_req_t request, fuse_ino_t inode) {
  StoredNodePointer node = context_of(request).tree.find(inode);
  if (!node) return failure(ESTALE, "inode " + std::to_string(inode) + ": gone");
  return node;
}

Result<StoredNodePointer> directory_of(fuse_req_t request, fuse_ino_t inode) {
  auto node = node_of(request, inode);
  if (node && !(*node)->is_directory()) return failure(ENOTDIR, "not a directory");
  return node;
}

void park(fuse_req_t request, const void* subject, const StoredNodePointer& node,
          std::function<bool()> retry) {
  ParkingLot& lot = context_of(request).parking;
  ParkedRequest parked;
  parked.id = request;
  parked.caller = fuse_req_ctx(request)->pid;
  parked.subject = subject;
  parked.checkpoint = node->checkpoint.get();
  parked.retry = [node, retry = std::move(retry)] { return retry(); };  // holds the node
  parked.refuse = [request](int errno_value) { fuse_reply_err(request, errno_value); };
  // Before it can be answered: afterwards the request may be gone.
  fuse_req_interrupt_func(request, interrupted, &lot);
  lot.park(std::move(parked));
}

}  // namespace target_operations_detail

const fuse_lowlevel_ops& target_operations() {
  static const fuse_lowlevel_ops table = [] {
    using namespace target_operations_detail;
    fuse_lowlevel_ops operations{};
    operations.init = init;
    add_name_operations(operations);
    add_attribute_operations(operations);
    add_read_operations(operations);
    add_remove_operations(operations);
    add_refused_operations(operations);
    return operations;
  }();
  return table;
}

}  // namespace ppmr
