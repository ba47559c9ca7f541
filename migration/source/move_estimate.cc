#include "migration/source/move_estimate.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// The time that a move takes besides rounds and downtime: for its records, the start of CRIU and of
// the supervisor before the rounds, and the end of both copies of the records.
constexpr milliseconds kAround{300};
// In each round, a page reader starts and the target confirms.
constexpr nanoseconds kPerRound{10'000'000};
// The rate if it is unknown. decide_round() assumes the same rate.
constexpr double kAssumedBytesPerS = 0.25e9;
// The time for the pages that the target wants at once in a post-copy move, and for its requests.
constexpr nanoseconds kPostCopyStart{150'000'000};
// Rounds of less memory say little about the rate to the target.
constexpr uint64_t kTellingBytes = uint64_t{16} << 20;

nanoseconds time_of(uint64_t bytes, double bytes_per_s) {
  return nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_s * 1e9));
}

milliseconds rounded(nanoseconds time) { return std::chrono::round<milliseconds>(time); }

// Returns how long the processes stand still if `frozen_bytes` are sent in this time.
nanoseconds downtime_of(uint64_t frozen_bytes, uint64_t memory_bytes, double bytes_per_s) {
  const RoundDecision nothing_left =
      decide_round({{memory_bytes, time_of(memory_bytes, bytes_per_s)}}, 0, {}, {});
  return nothing_left.expected_downtime + time_of(frozen_bytes, bytes_per_s);
}

// Simulates rounds until the move would freeze the processes, or cancel. Returns the bytes of their
// memory that are left to send. A tree that stands still for a share of the time writes for the
// rest of it.
uint64_t play_rounds(const WriteSample& sample, const LiveLimits& limits, MoveEstimate& estimate,
                     nanoseconds& elapsed) {
  const auto max_rate = static_cast<double>(limits.max_rate_bytes_per_s);
  const double rate =
      max_rate > 0 ? std::min(max_rate, estimate.rate_bytes_per_s) : estimate.rate_bytes_per_s;
  // With --cpu-share, copying keeps a processor busy, and rests in between.
  const uint64_t share = limits.cpu_share_percent;
  const auto with_rests = [&](nanoseconds works) {
    return share > 0 ? works * 100 / static_cast<int64_t>(share) : works;
  };
  std::vector<Round> rounds;
  uint64_t bytes = sample.memory_bytes;
  RoundDecision decision;
  do {
    const nanoseconds works = time_of(bytes, rate) + kPerRound;
    const nanoseconds took = with_rests(works);
    elapsed += took;
    estimate.sent_bytes += bytes;
    const uint64_t slow_down = decision.slow_down_percent;
    rounds.push_back({bytes, works, limits.max_rate_bytes_per_s, slow_down});
    bytes = written_within(sample, took * static_cast<int64_t>(100 - slow_down) / 100);
    decision = decide_round(rounds, bytes, elapsed, limits);
  } while (decision.next == NextStep::kRound);
  estimate.rounds = static_cast<unsigned>(rounds.size());
  estimate.why = decision.why;
  estimate.stays = decision.next == NextStep::kCancel;
  return bytes;
}

}  // namespace

uint64_t written_within(const WriteSample& sample, nanoseconds time) {
  WrittenAfter before;
  WrittenAfter after;
  for (const WrittenAfter& look : sample.written) {
    before = after;
    after = look;
    if (look.after >= time) break;
  }
  const auto span = static_cast<double>((after.after - before.after).count());
  if (span <= 0) return std::min(after.bytes, sample.memory_bytes);
  const double grows = static_cast<double>(after.bytes - before.bytes) / span;
  const double bytes = static_cast<double>(before.bytes) +
                       grows * static_cast<double>((time - before.after).count());
  return std::min(static_cast<uint64_t>(std::max(bytes, 0.0)), sample.memory_bytes);
}

WriteSample sum_of(const std::vector<WriteSample>& samples) {
  WriteSample sum;
  for (const WriteSample& sample : samples) {
    sum.memory_bytes += sample.memory_bytes;
    if (sample.written.size() > sum.written.size()) sum.written = sample.written;
  }
  for (WrittenAfter& look : sum.written) {
    look.bytes = 0;
    for (const WriteSample& sample : samples) look.bytes += written_within(sample, look.after);
  }
  return sum;
}

namespace {

// Estimates a move that begins again with post-copy, after the rounds of `first`.
MoveEstimate begun_again(EstimateInput input, const MoveEstimate& first) {
  input.limits.on_timeout = OnTimeout::kFreeze;
  input.limits.memory_follows = true;
  MoveEstimate second = estimate_move(input);
  second.sent_bytes += first.sent_bytes;
  second.rounds += first.rounds;
  second.time += first.time;
  second.why_post_copy = first.why;
  return second;
}

}  // namespace

MoveEstimate estimate_move(const EstimateInput& input) {
  MoveEstimate estimate;
  const bool is_known = input.rate_bytes_per_s > 0;
  estimate.rate_bytes_per_s = is_known ? input.rate_bytes_per_s : kAssumedBytesPerS;
  nanoseconds elapsed{0};
  FrozenWork work = input.limits.frozen_work;
  const uint64_t shared_bytes = std::min(work.compared_bytes, input.memory_bytes);
  uint64_t frozen_bytes = input.memory_bytes - shared_bytes;
  if (shared_bytes > 0) {
    elapsed += time_of(shared_bytes, estimate.rate_bytes_per_s) + kPerRound;
    estimate.sent_bytes += shared_bytes;
  }
  if (input.sample) {  // the rounds send the private memory, not the frozen processes
    frozen_bytes -= std::min(input.sample->memory_bytes, frozen_bytes);
    frozen_bytes = std::max(frozen_bytes, work.sent_bytes);  // the sample may contain some of it
    LiveLimits limits = input.limits;
    limits.frozen_work.sent_bytes = frozen_bytes;
    frozen_bytes += play_rounds(*input.sample, limits, estimate, elapsed);
    if (estimate.stays) {
      estimate.time = rounded(elapsed + kAround);
      return limits.on_timeout == OnTimeout::kPostCopy ? begun_again(input, estimate) : estimate;
    }
  }
  estimate.sent_bytes += frozen_bytes;
  const nanoseconds besides = time_of(work);
  const nanoseconds whole =
      downtime_of(frozen_bytes, input.memory_bytes, estimate.rate_bytes_per_s) + besides;
  const nanoseconds downtime =
      input.limits.memory_follows ? std::min(whole, kPostCopyStart + besides) : whole;
  work.compared_bytes = 0;
  const nanoseconds crowd = time_of(work);
  estimate.is_crowd = crowd > downtime / 2;
  estimate.downtime = rounded(downtime);
  estimate.time = rounded(elapsed + whole + kAround);
  return estimate;
}

double rate_of_earlier_moves(const std::vector<OwnershipRecord>& records,
                             const std::string& target) {
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    if (record->role != MigrationRole::kSource) continue;
    if (record->endpoint.value("target", "") != target) continue;
    uint64_t bytes = 0;
    int64_t took_ns = 0;
    for (const TreeRecord& tree : record->trees) {
      int64_t began_ns = tree.dump_began_ns;
      for (const RoundRecord& round : tree.rounds) {
        const int64_t round_ns = round.ended_ns - std::exchange(began_ns, round.ended_ns);
        if (round.bytes < kTellingBytes || round_ns <= 0) continue;
        bytes += round.bytes;
        took_ns += round_ns;
      }
    }
    if (took_ns > 0) return static_cast<double>(bytes) * 1e9 / static_cast<double>(took_ns);
  }
  return 0;
}

}  // namespace ppmr
