// The Fabric of verbs.h over libibverbs and librdmacm.
#pragma once

#include <memory>

#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// `pinned_bytes_max`: how much memory this process will register. open() fails when the memlock
// limit is lower. Call this before the process registers any memory.
std::unique_ptr<Fabric> make_verbs_fabric(uint64_t pinned_bytes_max);

// What a process must be able to open for this Fabric: the devices, for reading and writing, and
// for reading the drivers of libibverbs with their configuration, and what sysfs says.
inline constexpr const char* kVerbsDevices = "/dev/infiniband";
inline constexpr const char* kVerbsFiles[] = {
    "/sys", "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/libibverbs.d"};

}  // namespace ppmr
