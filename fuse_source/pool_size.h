// The size of the pool if --pool-size is not given.
#pragma once

#include <chrono>
#include <cstddef>

#include "fuse_source/source_options.h"

namespace ppmr {

// Returns 64 MiB. On a long link returns twice the product of the round trip and 10 Gb/s, at most
// 256 MiB. The result is a multiple of the chunk size.
//
// On local links pools of 8 to 64 MiB are equally fast for writes through the mount; the memory of
// frozen processes moves a tenth faster with 64 MiB than with 16 (bench/README.md).
size_t pool_size_for(std::chrono::microseconds round_trip, size_t chunk_size_bytes);

// Connects to the target to measure the round trip. Returns 0 if there is no target or if
// connecting fails; the later connection of the session then reports the cause.
std::chrono::microseconds round_trip_to_target(const SourceOptions& options);

}  // namespace ppmr
