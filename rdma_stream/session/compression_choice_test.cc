#include "rdma_stream/session/compression_choice.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr uint64_t kChunk = 1 << 20;
constexpr CompressionMethod kOff;
constexpr CompressionMethod kLz4 = CompressionChoice::kCandidates[0];
constexpr CompressionMethod kZstd = CompressionChoice::kCandidates[1];

// A stream with a simulated clock.
struct Stream {
  explicit Stream(double lz4_ratio = 0.5, double zstd_ratio = 0.3)
      : ratios{lz4_ratio, zstd_ratio} {}

  // Takes samples as often as the choice requests them, with these rates on one core.
  void sample() {
    while (choice.sample_is_due(now)) {
      ++samples;
      CompressionChoice::Clock::duration total{0};
      for (size_t i = 0; i < 2; ++i) {
        const auto time =
            microseconds(static_cast<int64_t>(1e6 * CompressionChoice::kSampleMaxBytes / rates[i]));
        choice.measured(CompressionChoice::kCandidates[i], CompressionChoice::kSampleMaxBytes,
                        static_cast<uint64_t>(CompressionChoice::kSampleMaxBytes * ratios[i]),
                        time);
        total += time;
      }
      now += total;
      sampling += total;
      choice.sampled(now, total);
    }
  }
  // The target takes chunks for `time` at this rate of bytes on the wire.
  void run(milliseconds time, double wire_rate, double backlog = 1) {
    for (const auto end = now + time; now < end;) {
      sample();
      const auto method = choice.method();
      const uint64_t bytes = static_cast<uint64_t>(kChunk * (method == kLz4    ? ratios[0]
                                                             : method == kZstd ? ratios[1]
                                                                               : 1));
      now += microseconds(static_cast<int64_t>(1e6 * static_cast<double>(bytes) / wire_rate));
      choice.released(bytes, backlog, now);
    }
  }

  std::array<double, 2> rates{600e6, 350e6};
  std::array<double, 2> ratios;
  CompressionChoice choice{{.automatic = true, .method = {}}};
  CompressionChoice::Clock::time_point now{std::chrono::hours(1)};
  CompressionChoice::Clock::duration sampling{0};
  int samples = 0;
};

TEST(CompressionChoice, WithoutAutoTheMethodIsConstant) {
  CompressionChoice choice({.method = kLz4});
  EXPECT_FALSE(choice.sample_is_due({}));
  EXPECT_EQ(choice.method(), kLz4);
  EXPECT_EQ(choice.text(), "lz4");
}

TEST(CompressionChoice, SlowLinkGetsTheBestRatio) {
  Stream stream;
  stream.run(milliseconds(1000), 118e6);
  EXPECT_EQ(stream.choice.method(), kZstd);
  EXPECT_EQ(stream.choice.text(), "auto: zstd:1");
}

TEST(CompressionChoice, FasterLinkGetsTheFasterMethod) {
  Stream stream;
  stream.run(milliseconds(1000), 295e6);
  EXPECT_EQ(stream.choice.method(), kLz4);
}

TEST(CompressionChoice, LinkFasterThanTheCompressorsGetsNoCompression) {
  Stream stream;
  stream.run(milliseconds(1000), 1180e6);
  EXPECT_EQ(stream.choice.method(), kOff);
}

TEST(CompressionChoice, BytesThatDoNotCompressAreSentUncompressed) {
  Stream stream(1, 1);
  stream.run(milliseconds(1000), 118e6);
  EXPECT_EQ(stream.choice.method(), kOff);
  EXPECT_GT(stream.samples, 5);
}

TEST(CompressionChoice, SamplesTakeOneHundredthOfACore) {
  Stream stream(1, 1);
  stream.run(milliseconds(10'000), 118e6);
  EXPECT_LT(stream.sampling, milliseconds(110));
}

TEST(CompressionChoice, SamplesAreRareIfNoMethodIsFaster) {
  Stream stream;
  stream.run(milliseconds(10'000), 1180e6);
  EXPECT_LE(stream.samples, 11);
}

TEST(CompressionChoice, StreamLimitedByItsWritersIsNotCompressed) {
  Stream stream;
  stream.run(milliseconds(3000), 50e6, /*backlog=*/0.2);
  EXPECT_EQ(stream.choice.method(), kOff);
  EXPECT_EQ(stream.samples, 0);
  EXPECT_EQ(stream.choice.why(), "the link does not limit the stream");
}

TEST(CompressionChoice, FollowsChangesInTheBytes) {
  Stream stream(1, 1);
  stream.run(milliseconds(500), 118e6);
  EXPECT_EQ(stream.choice.method(), kOff);
  stream.ratios = {0.5, 0.3};
  stream.run(milliseconds(1000), 118e6);
  EXPECT_EQ(stream.choice.method(), kZstd);
}

TEST(CompressionChoice, MeasuresTheLinkAgainWhenThePoolStaysEmpty) {
  Stream stream;
  stream.run(milliseconds(1000), 118e6);
  ASSERT_EQ(stream.choice.method(), kZstd);
  // The link has become faster, so the compressor is the limit now.
  stream.run(milliseconds(2500), 118e6, /*backlog=*/0.1);
  EXPECT_EQ(stream.choice.method(), kOff);
  stream.run(milliseconds(1000), 1180e6);
  EXPECT_EQ(stream.choice.method(), kOff);
}

TEST(CompressionChoice, PauseBetweenMovesDoesNotCountForTheLink) {
  Stream stream;
  stream.run(milliseconds(1000), 118e6);
  stream.choice.released(kChunk, 0.1, stream.now);  // the end of the move
  stream.now += std::chrono::hours(1);
  stream.choice.released(kChunk, 0.1, stream.now);
  EXPECT_EQ(stream.choice.method(), kZstd);
}

TEST(CompressionChoice, ReportsItsMeasurements) {
  Stream stream;
  stream.run(milliseconds(1000), 118e6);
  EXPECT_EQ(stream.choice.why(),
            "the link carries 118 MB/s; lz4 compresses 601 MB/s to 50%; zstd:1 compresses 350 MB/s "
            "to 30%");
}

}  // namespace
}  // namespace ppmr
