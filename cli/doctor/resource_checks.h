// Checks the limits, memory, disks, RDMA devices and the clock of a node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/doctor/diagnosis.h"
#include "rdma_stream/verbs/verbs_device.h"

namespace ppmr {

struct DiskSpace {
  std::string what;  // "records", "spilled images"
  std::string path;
  uint64_t free_bytes = 0;
  std::string why_unknown;  // why the space is unknown; empty: it is known
  std::string why_refused;  // why no migration uses the directory; empty: it may be used
};

struct ResourceFacts {
  uint64_t memlock_bytes = 0;     // the limit of this process; UINT64_MAX: none
  bool may_lock_any = false;      // whether this process has CAP_IPC_LOCK
  bool may_exceed_pipes = false;  // whether this process has CAP_SYS_RESOURCE
  uint64_t pipe_max_bytes = 0;    // fs.pipe-max-size; 0: unknown
  uint64_t memory_available_bytes = 0;
  bool clock_synchronised = true;
  std::vector<DiskSpace> disks;
  std::vector<RdmaPort> ports;
};

// `root`: the directory that contains /proc; empty on a real node. Fills all members but `disks`
// and `ports`. Limits, capabilities and the clock are those of this process and its kernel.
ResourceFacts gather_resource_facts(const std::string& root = "");

// Returns the free space of the file system that holds `path`. If `path` does not exist, measures
// its nearest parent that exists.
DiskSpace measure_disk(const std::string& what, const std::string& path);

// `pool_bytes`: the size of the pool that a daemon of this node locks.
Diagnoses check_resources(const ResourceFacts& facts, uint64_t pool_bytes);

}  // namespace ppmr
