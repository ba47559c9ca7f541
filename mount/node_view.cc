#include "mount/node_view.h"

#include <ctime>

namespace ppmr {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;

}  // namespace

mode_t file_type_bits(wire::NodeType type) {
  if (type == wire::NodeType::kDirectory) return S_IFDIR;
  return type == wire::NodeType::kFile ? S_IFREG : S_IFLNK;
}

struct stat stat_of(const NodeView& view) {
  struct stat result {};
  result.st_ino = view.inode;
  const bool is_symlink = view.type == wire::NodeType::kSymlink;
  result.st_mode = file_type_bits(view.type) | (is_symlink ? 0777 : view.attributes.mode & 07777);
  result.st_nlink = view.linked ? 1 : 0;
  if (view.type == wire::NodeType::kDirectory) result.st_nlink = 2 + view.subdirectories;
  result.st_uid = view.attributes.uid;
  result.st_gid = view.attributes.gid;
  result.st_size = static_cast<off_t>(view.size_bytes);
  result.st_blocks = static_cast<blkcnt_t>((view.stored_bytes + 511) / 512);
  result.st_blksize = 1 << 20;
  result.st_atim = to_timespec(view.attributes.atime_ns);
  result.st_mtim = to_timespec(view.attributes.mtime_ns);
  result.st_ctim = to_timespec(view.ctime_ns);
  return result;
}

int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return to_ns(now);
}

int64_t to_ns(const timespec& time) { return int64_t{time.tv_sec} * kNsPerSecond + time.tv_nsec; }

timespec to_timespec(int64_t time_ns) {
  timespec time{time_ns / kNsPerSecond, time_ns % kNsPerSecond};
  if (time.tv_nsec < 0) --time.tv_sec, time.tv_nsec += kNsPerSecond;
  return time;
}

}  // namespace ppmr
