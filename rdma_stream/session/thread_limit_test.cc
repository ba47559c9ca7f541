// Tests a system without a free thread: the receiver and the sender refuse one connection or
// session and continue.

#include "tests/stream/thread_limit.h"

#include <gtest/gtest.h>

#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

struct ThreadLimitTest : testing::Test {
  ThreadLimitTest() {
    RigOptions options;
    options.peer_timeout = milliseconds(1000);
    rig = std::make_unique<StreamRig>(options);
  }
  // Moves a whole checkpoint.
  Status move(TestSource& source, const std::string& name) {
    if (auto claimed = source.claim(name); !claimed) return claimed;
    auto file = source.make_file("file");
    if (!file) return failure(file.error());
    if (auto written = source.write(**file, 0, 3 * kChunkSizeMinBytes, random); !written) {
      return written;
    }
    return source.seal();
  }

  std::mt19937_64 random{1};
  std::unique_ptr<StreamRig> rig;
};

TEST_F(ThreadLimitTest, SessionWhoseThreadCannotStartIsRefusedAndTheNextSucceeds) {
  int refused = 0;
  bool reached = true;
  for (int threads_left = 0; reached; ++threads_left) {
    ASSERT_LT(threads_left, 30);
    {
      const ThreadLimit limit(threads_left);
      TestSource source(*rig, {});
      reached = limit.reached();
      if (!source.opened()) {
        ++refused;
        const std::string reason = source.opened().error().message;
        EXPECT_NE(reason.find("Resource temporarily unavailable"), std::string::npos) << reason;
      }
    }
    TestSource next(*rig, {});
    ASSERT_TRUE(next.opened()) << next.opened().error().message;
    const Status moved = move(next, "checkpoint-" + std::to_string(threads_left));
    EXPECT_TRUE(moved) << moved.error().message;
  }
  // Threads of both channels, the movers, the connection and the control connection.
  EXPECT_GT(refused, 4);
}

TEST_F(ThreadLimitTest, SessionRecoversWhenThreadsAreAvailableAgain) {
  TestSource source(*rig, {});
  ASSERT_TRUE(source.opened());
  {
    const ThreadLimit limit(0);
    rig->network().cut_all();
    ASSERT_TRUE(eventually([&] { return limit.reached(); }));  // a reconnection was refused
  }
  EXPECT_TRUE(move(source, "checkpoint"));
}

}  // namespace
}  // namespace ppmr
