#include "fuse_source/pool_size.h"

#include <algorithm>

#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

constexpr size_t kLocalBytes = size_t{64} << 20;
constexpr size_t kMostBytes = size_t{256} << 20;
// The assumed bandwidth of a link, 10 Gb/s. A long link that is faster needs --pool-size.
constexpr size_t kLinkBytesPerUs = 1250;
constexpr size_t kFewestSlots = 8;
constexpr std::chrono::milliseconds kPatience{2000};

}  // namespace

size_t pool_size_for(std::chrono::microseconds round_trip, size_t chunk_size_bytes) {
  const auto us = static_cast<size_t>(std::clamp<int64_t>(round_trip.count(), 0, 1'000'000));
  const size_t wanted = std::clamp(2 * us * kLinkBytesPerUs, kLocalBytes, kMostBytes);
  return std::max(wanted / chunk_size_bytes, kFewestSlots) * chunk_size_bytes;
}

std::chrono::microseconds round_trip_to_target(const SourceOptions& options) {
  if (options.discard) return {};
  const auto measured = measure_round_trip(options.target_address, kPatience);
  return measured ? *measured : std::chrono::microseconds(0);
}

}  // namespace ppmr
