// Tests a link that fails for a while, or for good, and a silent peer.

#include <gtest/gtest.h>

#include <thread>

#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kChunk = kChunkSizeMinBytes;

struct Outage : testing::Test {
  Outage() {
    RigOptions options;
    options.peer_timeout = milliseconds(1000);
    rig = std::make_unique<StreamRig>(options);
  }
  std::mt19937_64 random{1};
  std::unique_ptr<StreamRig> rig;
};

TEST_F(Outage, ShorterThanThePeerTimeoutLosesNothing) {
  TestSource source(*rig, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  for (int round = 0; round < 3; ++round) {
    rig->network().set_link(false);
    rig->network().cut_all();
    std::thread back([&] {
      EXPECT_TRUE(eventually([&] { return !source.sender().counters().connected; }));
      rig->network().set_link(true);
    });
    EXPECT_TRUE(source.write(file, 0, 20 * kChunk, random));
    back.join();
  }
  EXPECT_TRUE(source.seal());
  EXPECT_EQ(rig->sink().content(file.node), file.model);
  EXPECT_GT(source.sender().counters().reconnections, 0u);
}

TEST_F(Outage, LongerThanThePeerTimeoutFailsBothSides) {
  TestSource source(*rig, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  rig->network().set_link(false);
  const auto begin = Clock::now();
  (void)source.write(file, 0, 20 * kChunk, random);
  const Status drained = source.drain(file);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().errno_value, EIO);
  EXPECT_NE(drained.error().message.find("was silent for 1000 ms"), std::string::npos);
  EXPECT_LT(Clock::now() - begin, milliseconds(5000));
  EXPECT_TRUE(eventually([&] { return rig->sink().open_sessions() == 0; }, milliseconds(3000)));
  EXPECT_NE(rig->sink().end_reason().find("was silent for 1000 ms"), std::string::npos);
  EXPECT_EQ(source.pool().counters().free, source.pool().counters().slots);
  rig->network().set_link(true);
}

// The outage is also longer than the time without payload after which a session fails.
TEST_F(Outage, LongerThanThePeerTimeoutLosesNothingWithPatience) {
  TestSource source(*rig, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  source.sender().set_patience(std::chrono::minutes(1));
  ASSERT_TRUE(source.write(file, 0, kChunk, random));
  ASSERT_TRUE(source.drain(file));
  rig->network().set_link(false);
  rig->network().cut_all();
  std::thread back([&] {
    std::this_thread::sleep_for(milliseconds(4000));
    rig->network().set_link(true);
  });
  EXPECT_TRUE(source.write(file, kChunk, 20 * kChunk, random));
  back.join();
  EXPECT_TRUE(source.seal());
  EXPECT_EQ(rig->sink().content(file.node), file.model);
}

TEST_F(Outage, PatienceEndsAtBothSides) {
  TestSource source(*rig, {});
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  source.sender().set_patience(milliseconds(2000));
  ASSERT_TRUE(source.write(file, 0, kChunk, random));
  ASSERT_TRUE(source.drain(file));
  rig->network().set_link(false);
  rig->network().cut_all();
  (void)source.write(file, kChunk, kChunk, random);
  const Status drained = source.drain(file);
  ASSERT_FALSE(drained);
  EXPECT_NE(drained.error().message.find("was silent for 2000 ms"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return rig->sink().open_sessions() == 0; }, milliseconds(5000)));
  EXPECT_NE(rig->sink().end_reason().find("was silent for 2000 ms"), std::string::npos);
  rig->network().set_link(true);
}

TEST_F(Outage, ClosingASourceDoesNotWaitForASilentTarget) {
  auto source = std::make_unique<TestSource>(*rig, TestSourceOptions{});
  ASSERT_TRUE(source->claim("checkpoint"));
  TestFile& file = **source->make_file("file");
  rig->network().set_link(false);
  std::thread writer([&] { (void)source->write(file, 0, 3 * kChunk, random); });
  writer.join();
  ASSERT_TRUE(eventually([&] { return !source->sender().counters().connected; }));
  const auto begin = Clock::now();
  source->close_sender();
  EXPECT_LT(Clock::now() - begin, milliseconds(600));
  EXPECT_EQ(source->pool().counters().free, source->pool().counters().slots);
  rig->network().set_link(true);
}

}  // namespace
}  // namespace ppmr
