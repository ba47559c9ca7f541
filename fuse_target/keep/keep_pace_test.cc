#include "fuse_target/keep/keep_pace.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using namespace std::chrono_literals;

TEST(KeepPace, RestsWhileStreamsOrReadersAreBusy) {
  EXPECT_EQ(rest_after(2ms, 1ms, 0.1), 8ms);
  EXPECT_EQ(rest_after(2ms, kBusyFor, 0.1), 8ms);
}

TEST(KeepPace, DoesNotRestWhenTheStoreIsIdle) {
  EXPECT_EQ(rest_after(2ms, kBusyFor + 1ms, 0.1), 0ms);
}

TEST(KeepPace, DoesNotRestWhenMemoryIsShort) { EXPECT_EQ(rest_after(2ms, 1ms, 0.6), 0ms); }

TEST(KeepPace, RestIsShortEvenIfTheDiskIsSlow) { EXPECT_EQ(rest_after(10s, 1ms, 0.1), kRestMax); }

}  // namespace
}  // namespace ppmr
