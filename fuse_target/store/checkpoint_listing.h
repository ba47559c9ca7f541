// A checkpoint as one list of nodes. The keeper writes such a list to the disk, and reads it when
// the daemon starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fuse_target/store/kept_bytes.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

struct ListedNode {
  uint32_t parent =
      0;  // index of an earlier directory; 0 for the checkpoint itself, the first node
  std::string name;
  wire::NodeType type = wire::NodeType::kDirectory;
  wire::Attributes attributes;
  int64_t ctime_ns = 0;
  std::string link_target;
  uint64_t size_bytes = 0;  // of a file
  KeptBytes kept;           // of a file of a kept checkpoint

  bool is_file() const { return type == wire::NodeType::kFile; }
};

struct CheckpointListing {
  std::string owner;  // the identity of the peer that sent the checkpoint
  std::string source_name;
  int64_t begun_ns = 0;  // CLOCK_REALTIME
  int64_t sealed_ns = 0;
  uint64_t landed_bytes = 0;
  std::vector<ListedNode> nodes;  // not empty

  const std::string& name() const { return nodes.front().name; }
};

}  // namespace ppmr
