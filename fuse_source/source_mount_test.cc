// What happens while a source mount ends, without the mount itself.
#include "fuse_source/source_mount.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "rdma_stream/receiver.h"
#include "tests/memory_sink.h"

namespace ppmr {
namespace {

SourceOptions options_for(const Receiver& target) {
  SourceOptions options;
  options.target_address = target.address();
  options.chunk_size_bytes = size_t{64} << 10;
  options.pool_size_bytes = 2 * options.chunk_size_bytes;
  options.transport.mode = TransportMode::kTcp;
  options.sender.stream_count = 1;
  return options;
}

// The session's thread calls the mount for each of these; none may find it half gone. (It is
// ThreadSanitizer that notices.)
TEST(SourceMount, EndsWhileItsTargetAsks) {
  MemorySink sink;
  Receiver target({}, std::move(Security::none()->listener("127.0.0.1:0").value()), sink);
  std::atomic<bool> done = false;
  std::atomic<uint64_t> asked = 0;
  std::thread asking([&] {
    while (!done) {
      for (const SessionReport& session : target.sessions()) {
        const NodeKey nothing_of_its{session.id, 1'000'000};
        if (target.request_seal(nothing_of_its)) ++asked;
        target.tell_removed(nothing_of_its);
      }
      // No faster than a source reads: what it has not acknowledged is kept, up to a limit.
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  for (int i = 0; i < 30; ++i) {
    const uint64_t asked_before = asked;
    auto mount = SourceMount::create(options_for(target));
    EXPECT_TRUE(mount) << mount.error().message;
    for (int looks = 0; looks < 5000 && asked < asked_before + 20; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(asked, asked_before + 20);
  }
  done = true;
  asking.join();
}

}  // namespace
}  // namespace ppmr
