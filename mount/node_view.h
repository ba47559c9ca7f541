// The attributes of a node as both mounts show them to the kernel.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "rdma_stream/wire/wire.h"

namespace ppmr {

// The state of a node at one moment.
struct NodeView {
  uint64_t inode = 0;
  wire::NodeType type = wire::NodeType::kDirectory;
  wire::Attributes attributes;
  int64_t ctime_ns = 0;
  uint64_t size_bytes = 0;
  uint64_t stored_bytes = 0;  // memory or disk that the content occupies
  size_t subdirectories = 0;
  bool linked = true;
};

struct DirectoryEntry {
  std::string name;
  uint64_t inode = 0;
  wire::NodeType type = wire::NodeType::kDirectory;
};

mode_t file_type_bits(wire::NodeType type);  // S_IFDIR, S_IFREG or S_IFLNK
struct stat stat_of(const NodeView& view);

// Returns the time in nanoseconds since the epoch, negative before the epoch.
int64_t now_ns();
int64_t to_ns(const timespec& time);
timespec to_timespec(int64_t time_ns);

}  // namespace ppmr
