#include "rdma_stream/session/compression_choice.h"

#include <fmt/format.h>

#include <algorithm>

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr double kBacklogMin = 0.5;
// The link's rate is measured over at least this time and this many chunks.
constexpr milliseconds kWindow{50};
constexpr uint64_t kWindowChunks = 8;
// With compression the CPU may have become the limit, and the link may have become faster without
// any sign of it. If the pool stays empty for this time, the link is measured again, without
// compression.
constexpr std::chrono::seconds kForgetLink{2};
// Chunks are compressed if a method makes the stream faster by this factor. Another method replaces
// the method in use if it is better by this factor.
constexpr double kGainMin = 1.1;
constexpr std::chrono::seconds kPause{1};  // a longer pause does not count as an empty pool
constexpr double kWeight = 0.25;           // weight of the newest measurement
constexpr int kSampleCost = 100;           // a hundredth of one core
// The interval of samples while each method compresses so slowly, compared with the link, that no
// ratio could make the stream faster.
constexpr std::chrono::seconds kSampleRarely{1};

double seconds(CompressionChoice::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string rate_text(double bytes_per_second) {
  return fmt::format("{:.0f} MB/s", bytes_per_second / 1e6);
}

}  // namespace

CompressionMethod CompressionChoice::method() const {
  MutexLock lock(mutex_);
  return method_;
}

bool CompressionChoice::sample_is_due(Clock::time_point now) {
  if (!option_.automatic) return false;
  MutexLock lock(mutex_);
  if (!link_rate_ || now < next_sample_) return false;
  next_sample_ = now + kSampleRarely;  // other threads take no sample at the same time
  return true;
}

void CompressionChoice::measured(const CompressionMethod& method, uint64_t bytes,
                                 uint64_t compressed_bytes, Clock::duration time) {
  if (!option_.automatic || bytes == 0) return;
  const auto found = std::find(kCandidates.begin(), kCandidates.end(), method);
  if (found == kCandidates.end()) return;
  const double rate = static_cast<double>(bytes) / std::max(seconds(time), 1e-9);
  const double ratio = static_cast<double>(compressed_bytes) / static_cast<double>(bytes);
  MutexLock lock(mutex_);
  Candidate& candidate = candidates_[static_cast<size_t>(found - kCandidates.begin())];
  if (!candidate.known) candidate = {true, rate, ratio};
  candidate.rate += kWeight * (rate - candidate.rate);
  candidate.ratio += kWeight * (ratio - candidate.ratio);
  choose_locked();
}

void CompressionChoice::sampled(Clock::time_point now, Clock::duration time) {
  MutexLock lock(mutex_);
  const bool hopeless =
      std::all_of(candidates_.begin(), candidates_.end(),
                  [this](const Candidate& candidate) PPMR_REQUIRES(mutex_) {
                    return candidate.known && link_rate_ && candidate.rate < *link_rate_ * kGainMin;
                  });
  next_sample_ = now + (hopeless ? Clock::duration(kSampleRarely) : time * kSampleCost);
}

void CompressionChoice::released(uint64_t wire_bytes, double backlog, Clock::time_point now) {
  if (!option_.automatic) return;
  MutexLock lock(mutex_);
  if (now - last_release_ > kPause) idle_since_.reset();
  last_release_ = now;
  if (backlog < kBacklogMin) {
    window_begin_.reset();
    if (!idle_since_) idle_since_ = now;
    if (link_rate_ && method_.kind != wire::Compression::kNone &&
        now - *idle_since_ > kForgetLink) {
      link_rate_.reset();
      choose_locked();
    }
    return;
  }
  idle_since_.reset();
  if (!window_begin_) {
    window_begin_ = now;
    window_bytes_ = 0;
    window_chunks_ = 0;
    return;
  }
  window_bytes_ += wire_bytes;
  ++window_chunks_;
  if (now - *window_begin_ < kWindow || window_chunks_ < kWindowChunks) return;
  link_rate_ = static_cast<double>(window_bytes_) / seconds(now - *window_begin_);
  window_begin_ = now;
  window_bytes_ = 0;
  window_chunks_ = 0;
  choose_locked();
}

double CompressionChoice::gain_locked(const Candidate& candidate) const {
  if (!candidate.known || !link_rate_) return 0;
  return std::min(1 / std::max(candidate.ratio, 1e-3), candidate.rate / *link_rate_);
}

void CompressionChoice::choose_locked() {
  CompressionMethod best;
  double best_gain = 1;
  for (size_t i = 0; i < kCandidates.size(); ++i) {
    if (kCandidates[i] != method_) continue;
    // A method in use stays if it is better than no compression at all. This prevents frequent
    // changes.
    if (const double gain = gain_locked(candidates_[i]); gain > best_gain) {
      best = method_;
      best_gain = gain;
    }
  }
  for (size_t i = 0; i < kCandidates.size(); ++i) {
    if (const double gain = gain_locked(candidates_[i]); gain > best_gain * kGainMin) {
      best = kCandidates[i];
      best_gain = gain;
    }
  }
  method_ = best;
}

std::string CompressionChoice::text() const {
  if (!option_.automatic) return to_string(option_);
  return "auto: " + to_string(method());
}

std::string CompressionChoice::why() const {
  if (!option_.automatic) return "";
  MutexLock lock(mutex_);
  if (!link_rate_) return "the link does not limit the stream";
  std::string text = "the link carries " + rate_text(*link_rate_);
  for (size_t i = 0; i < kCandidates.size(); ++i) {
    const Candidate& candidate = candidates_[i];
    if (!candidate.known) continue;
    text += fmt::format("; {} compresses {} to {:.0f}%", to_string(kCandidates[i]),
                        rate_text(candidate.rate), 100 * candidate.ratio);
  }
  return text;
}

}  // namespace ppmr
