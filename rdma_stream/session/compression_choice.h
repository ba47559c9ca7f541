// Decides for --compress auto whether compression makes the stream faster.
//
// A chunk that waits for the link costs time, and so does a chunk that waits for a compressor. The
// link's rate is measured while the pool is more than half full of announced chunks: only then does
// the link (or the target) limit the stream. The rate and the ratio of each method are measured on
// samples. With a method the stream carries
//
//   min(rate of the link / ratio, rate of the method on one core)
//
// and without a method the rate of the link. The best method is used if it gains at least a tenth.
// So chunks are sent uncompressed if the writers limit the stream, if the link is faster than the
// compressors, or if the memory does not compress. Samples take at most a hundredth of one core.
//
// Rejected: alternating between the methods and comparing the rates of the whole stream. A move
// takes seconds, and on shared machines its rate varies by more than compression can gain.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "rdma_stream/session/compression.h"

namespace ppmr {

// Threads: any.
class CompressionChoice {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kSampleMaxBytes = size_t{128} << 10;  // the front of a chunk
  // The methods that samples measure.
  static constexpr std::array<CompressionMethod, 2> kCandidates = {
      CompressionMethod{wire::Compression::kLz4, 0},
      CompressionMethod{wire::Compression::kZstd, 1}};

  explicit CompressionChoice(CompressionOption option) : option_(option), method_(option.method) {}

  // Returns the method for the next chunk.
  CompressionMethod method() const;
  // Returns whether the caller must now compress a sample with each candidate and report the times.
  bool sample_is_due(Clock::time_point now);
  // Reports that a candidate has compressed `bytes` to `compressed_bytes` (equal to `bytes` if they
  // do not compress).
  void measured(const CompressionMethod& method, uint64_t bytes, uint64_t compressed_bytes,
                Clock::duration time);
  void sampled(Clock::time_point now, Clock::duration time);
  // Reports that the target has taken a chunk with this many bytes on the wire. `backlog` is the
  // part of the pool that is announced.
  void released(uint64_t wire_bytes, double backlog, Clock::time_point now);

  // Describes the choice for the status.
  std::string text() const;
  std::string why() const;

 private:
  struct Candidate {
    bool known = false;
    double rate = 0;   // bytes of the file per second on one core
    double ratio = 1;  // compressed bytes / bytes
  };
  void choose_locked() PPMR_REQUIRES(mutex_);
  double gain_locked(const Candidate& candidate) const
      PPMR_REQUIRES(mutex_);  // over no compression

  const CompressionOption option_;
  mutable Mutex mutex_;
  CompressionMethod method_ PPMR_GUARDED_BY(mutex_);
  std::array<Candidate, kCandidates.size()> candidates_ PPMR_GUARDED_BY(mutex_);
  std::optional<double> link_rate_ PPMR_GUARDED_BY(mutex_);  // bytes per second
  // Set while the pool is more than half full.
  std::optional<Clock::time_point> window_begin_ PPMR_GUARDED_BY(mutex_);
  uint64_t window_bytes_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t window_chunks_ PPMR_GUARDED_BY(mutex_) = 0;
  // The time since which the target releases chunks, but the pool is not more than half full.
  std::optional<Clock::time_point> idle_since_ PPMR_GUARDED_BY(mutex_);
  Clock::time_point last_release_ PPMR_GUARDED_BY(mutex_){};
  Clock::time_point next_sample_ PPMR_GUARDED_BY(mutex_){};
};

}  // namespace ppmr
