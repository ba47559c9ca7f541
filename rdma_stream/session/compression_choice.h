// Whether compression pays, for --compress auto.
//
// A chunk that waits for the link costs time, and so does a chunk that waits for a compressor. The
// link's rate is measured while the pool is more than half full of announced chunks: only then is
// it the link (or the target) that limits the stream. The rate and the ratio of each method are
// measured on samples. With a method the stream carries
//
//   min(rate of the link / ratio, rate of the method on one core)
//
// and without one the rate of the link. The best method is used if it gains at least a tenth. So a
// stream that is limited by its writers, a link faster than the compressors, and memory that does
// not compress all travel as they are. Samples take at most a hundredth of one core.
//
// Rejected: alternating between the methods and comparing the rates of the whole stream. A move
// takes seconds, and on shared machines its rate varies by more than what there is to gain.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "rdma_stream/session/compression.h"

namespace ppmr {

// Threads: any.
class CompressionChoice {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kSampleMaxBytes = size_t{128} << 10;  // the front of a chunk
  // Measured by sample.
  static constexpr std::array<CompressionMethod, 2> kCandidates = {
      CompressionMethod{wire::Compression::kLz4, 0},
      CompressionMethod{wire::Compression::kZstd, 1}};

  explicit CompressionChoice(CompressionOption option) : option_(option), method_(option.method) {}

  // For the next chunk.
  CompressionMethod method() const;
  // Whether the caller should compress a sample with each candidate, and report the times.
  bool sample_is_due(Clock::time_point now);
  // A candidate has compressed `bytes` to `compressed_bytes` (`bytes` if they do not compress).
  void measured(const CompressionMethod& method, uint64_t bytes, uint64_t compressed_bytes,
                Clock::duration time);
  void sampled(Clock::time_point now, Clock::duration time);
  // The target has taken a chunk with this many bytes on the wire. `backlog`: the part of the pool
  // that is announced.
  void released(uint64_t wire_bytes, double backlog, Clock::time_point now);

  // For the status.
  std::string text() const;
  std::string why() const;

 private:
  struct Candidate {
    bool known = false;
    double rate = 0;   // bytes of the file per second on one core
    double ratio = 1;  // compressed bytes / bytes
  };
  void choose_locked();
  double gain_locked(const Candidate& candidate) const;  // over no compression

  const CompressionOption option_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  CompressionMethod method_;
  std::array<Candidate, kCandidates.size()> candidates_;
  std::optional<double> link_rate_;                // bytes per second
  std::optional<Clock::time_point> window_begin_;  // set while the pool is full
  uint64_t window_bytes_ = 0;
  uint64_t window_chunks_ = 0;
  std::optional<Clock::time_point> idle_since_;  // chunks are released, but the pool is not full
  Clock::time_point last_release_{};
  Clock::time_point next_sample_{};
};

}  // namespace ppmr
