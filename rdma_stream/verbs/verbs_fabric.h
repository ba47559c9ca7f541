// Implements the Fabric of verbs.h with libibverbs and librdmacm.
#pragma once

#include <memory>

#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// `pinned_bytes_max`: the amount of memory that this process will register. open() fails when the
// memlock limit is lower. Call this function before the process registers any memory.
std::unique_ptr<Fabric> make_verbs_fabric(uint64_t pinned_bytes_max);

// The paths that a process must be able to open for this Fabric: the devices for reading and
// writing; and, for reading, the drivers of libibverbs, their configuration, and sysfs.
inline constexpr const char* kVerbsDevices = "/dev/infiniband";
inline constexpr const char* kVerbsFiles[] = {
    "/sys", "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/libibverbs.d"};

}  // namespace ppmr
