#include "fuse_source/pool_size.h"

#include <gtest/gtest.h>

#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

using std::chrono::microseconds;
constexpr size_t kMiB = size_t{1} << 20;

TEST(PoolSize, GrowsWithTheRoundTripOfALongLink) {
  EXPECT_EQ(pool_size_for(microseconds(0), kMiB), 64 * kMiB);
  EXPECT_EQ(pool_size_for(microseconds(20'000), kMiB), 64 * kMiB);
  EXPECT_EQ(pool_size_for(microseconds(40'000), kMiB), 95 * kMiB);  // 10 Gb/s x 40 ms = 48 MiB
  EXPECT_EQ(pool_size_for(microseconds(10'000'000), kMiB), 256 * kMiB);
}

TEST(PoolSize, IsAMultipleOfTheChunkSize) {
  for (const size_t chunk : {size_t{64} << 10, size_t{100} << 10, kMiB}) {
    EXPECT_EQ(pool_size_for(microseconds(77'777), chunk) % chunk, 0u) << chunk;
  }
}

TEST(PoolSize, IsTheSizeForALocalLinkIfTheTargetIsUnreachable) {
  SourceOptions options;
  options.target_address = "127.0.0.1:1";
  EXPECT_EQ(pool_size_for(round_trip_to_target(options), kMiB), 64 * kMiB);
}

TEST(PoolSize, MeasuresTheRoundTripToAListener) {
  const auto listener = std::move(tcp_listener("127.0.0.1:0").value());
  const auto measured = measure_round_trip(listener->address(), std::chrono::milliseconds(1000));
  ASSERT_TRUE(measured) << measured.error().message;
  EXPECT_GT(measured->count(), 0);
  EXPECT_LT(measured->count(), 1'000'000);
}

}  // namespace
}  // namespace ppmr
