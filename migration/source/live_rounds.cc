#include "migration/source/live_rounds.h"

#include <fmt/format.h>

#include <algorithm>

namespace ppmr {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// How long a tree stands still without memory to send. CRIU's description, the restore and the
// decision take 0.1 s for a small process. The kernel counts pages for CRIU in /proc/PID/smaps,
// which takes 20 ms for each GiB (bench/run --only shapes).
constexpr nanoseconds kFixedPart{100'000'000};
constexpr double kFixedPerByteNs = 20e6 / (1 << 30);
// A round costs about 10 ms for its page reader and its confirmation. If the rest takes less than
// this time to send, another round saves no time.
constexpr nanoseconds kShortTransfer{5'000'000};
// Rounds with fewer bytes do not count for the measured rate.
constexpr uint64_t kMeasuredMinBytes = uint64_t{1} << 20;
constexpr double kAssumedBytesPerNs = 0.25;
constexpr double kHeldBackShare = 0.7;
// The target keeps the copy of each round until the move ends.
constexpr double kSentMaxTimesMemory = 4;
constexpr uint64_t kSmallMemoryBytes = uint64_t{64} << 20;
constexpr double kRoomMinTimes = 2.1;
// The time for which CRIU keeps the tree frozen for each further process and thread: 300 processes
// stood still for 4.2 s, 2,000 threads for 1.8 s (bench/results/shapes).
constexpr nanoseconds kPerProcess{13'500'000};
constexpr nanoseconds kPerThread{850'000};
// Shared memory is compared page by page while the processes stand still (processes/files).
constexpr double kComparedPerByteNs = 35e6 / (1 << 30);

// Returns whether --max-rate, and not the link, set the length of the round.
bool was_held_back(const Round& round) {
  const double most_bytes = static_cast<double>(round.max_rate_bytes_per_s) * 1e-9 *
                            static_cast<double>(round.took.count());
  return most_bytes > 0 && static_cast<double>(round.bytes) > kHeldBackShare * most_bytes;
}

// Returns the rate at which the memory of the frozen tree travels, which --max-rate does not limit.
double rate_of(const std::vector<Round>& rounds) {
  uint64_t bytes = 0;
  nanoseconds took{0};
  for (const Round& round : rounds) {
    if (round.bytes < kMeasuredMinBytes || was_held_back(round)) continue;
    bytes += round.bytes;
    took += round.took;
  }
  if (bytes == 0 || took.count() <= 0) return kAssumedBytesPerNs;
  return static_cast<double>(bytes) / static_cast<double>(took.count());
}

bool shrinks(uint64_t bytes, uint64_t earlier) { return bytes < earlier / 10 * 9; }

// Returns the share for the next round. Two steps lead to the most that the user allows. While each
// round is at most half of the round before, the share stays: if the tree ran freely again, the
// rounds would grow. QEMU's auto-converge has the same threshold of one half.
uint64_t next_slow_down(const Round& last, uint64_t pending_bytes, uint64_t most_percent) {
  if (pending_bytes <= last.bytes / 2) return std::min(last.slow_down_percent, most_percent);
  return std::min(last.slow_down_percent + (most_percent + 1) / 2, most_percent);
}

nanoseconds time_to_send(uint64_t bytes, double rate_bytes_per_ns) {
  return nanoseconds{static_cast<int64_t>(static_cast<double>(bytes) / rate_bytes_per_ns)};
}

// Returns why a tree stands still for long although little of its memory is left.
const char* cause_of_fixed(FrozenWork work, double rate_bytes_per_ns) {
  const nanoseconds sent = time_to_send(work.sent_bytes, rate_bytes_per_ns);
  work.compared_bytes = 0;
  const nanoseconds crowd = time_of(work);
  if (std::max(sent, crowd) < kFixedPart) return "little of its memory is left to send";
  return sent > crowd ? "no round can copy its locked memory, registered memory and huge pages"
                      : "CRIU needs long for so many processes and threads";
}

// Returns `bytes` as a multiple of the tree's memory.
double times_memory(uint64_t bytes, uint64_t memory_bytes) {
  return static_cast<double>(bytes) /
         static_cast<double>(std::max(memory_bytes, kSmallMemoryBytes));
}

}  // namespace

FrozenWork& FrozenWork::operator+=(const FrozenWork& other) {
  processes += other.processes;
  threads += other.threads;
  compared_bytes += other.compared_bytes;
  sent_bytes += other.sent_bytes;
  return *this;
}

nanoseconds time_of(const FrozenWork& work) {
  const size_t further = std::max(work.processes, size_t{1}) - 1;
  const size_t further_threads = std::max(work.threads, work.processes) - work.processes;
  const double compared_ns = static_cast<double>(work.compared_bytes) * kComparedPerByteNs;
  return further * kPerProcess + further_threads * kPerThread +
         nanoseconds(static_cast<int64_t>(compared_ns));
}

bool fits_with_rounds(uint64_t sent_bytes, uint64_t rest_bytes, uint64_t memory_bytes,
                      const LiveLimits& limits) {
  return times_memory(sent_bytes + rest_bytes, memory_bytes) + 1 <= limits.room_times;
}

bool has_room_for_rounds(const LiveLimits& limits) { return limits.room_times >= kRoomMinTimes; }

const char* to_string(OnTimeout on_timeout) {
  switch (on_timeout) {
    case OnTimeout::kFreeze:
      return "freeze";
    case OnTimeout::kCancel:
      return "cancel";
    case OnTimeout::kPostCopy:
      return "post-copy";
  }
  return "";
}

Result<OnTimeout> parse_on_timeout(const std::string& text) {
  if (text == "freeze") return OnTimeout::kFreeze;
  if (text == "cancel") return OnTimeout::kCancel;
  if (text == "post-copy") return OnTimeout::kPostCopy;
  return failure(EINVAL, "'" + text + "' is neither freeze nor cancel nor post-copy");
}

RoundDecision decide_round(const std::vector<Round>& rounds, uint64_t pending_bytes,
                           nanoseconds elapsed, const LiveLimits& limits) {
  const double rate = rate_of(rounds);
  const nanoseconds transfer = time_to_send(pending_bytes, rate);
  const auto memory_bytes = static_cast<double>(rounds.front().bytes);
  const nanoseconds fixed = limits.fixed_part.value_or(
      kFixedPart + nanoseconds{static_cast<int64_t>(memory_bytes * kFixedPerByteNs)} +
      time_of(limits.frozen_work));
  const uint64_t frozen_bytes =
      limits.frozen_work.sent_bytes + (limits.memory_follows ? 0 : pending_bytes);
  const nanoseconds sent_frozen = time_to_send(frozen_bytes, rate);
  RoundDecision decision;
  decision.expected_downtime = duration_cast<milliseconds>(fixed + sent_frozen);
  const bool fits = fixed + sent_frozen <= limits.max_downtime;
  const bool halves = pending_bytes <= rounds.back().bytes / 2;
  const bool in_time = elapsed < limits.max_time;
  const bool is_short = transfer <= kShortTransfer;
  if (fits && (is_short || !halves || !in_time)) {
    decision.next = NextStep::kFreeze;
    return decision;
  }
  uint64_t sent_bytes = 0;
  for (const Round& round : rounds) sent_bytes += round.bytes;
  const Round& last = rounds.back();
  decision.slow_down_percent = next_slow_down(last, pending_bytes, limits.slow_down_percent);
  const bool is_stuck = rounds.size() >= 2 && !shrinks(pending_bytes, last.bytes) &&
                        !shrinks(last.bytes, rounds[rounds.size() - 2].bytes) &&
                        last.slow_down_percent >= limits.slow_down_percent;
  const uint64_t with_next_bytes = sent_bytes + pending_bytes;
  const bool is_costly = times_memory(with_next_bytes, rounds.front().bytes) > kSentMaxTimesMemory;
  // During the next round, the tree may write as much again.
  const bool has_room =
      fits_with_rounds(with_next_bytes, pending_bytes, rounds.front().bytes, limits);
  if (!is_short && in_time && !is_stuck && !is_costly && has_room) return decision;
  const bool helps_post_copy = fixed <= limits.max_downtime;
  const bool cancels = limits.on_timeout == OnTimeout::kCancel ||
                       (limits.on_timeout == OnTimeout::kPostCopy && helps_post_copy);
  decision.next = !fits && cancels ? NextStep::kCancel : NextStep::kFreeze;
  if (fits) return decision;
  const char* const cause = is_short   ? cause_of_fixed(limits.frozen_work, rate)
                            : !in_time ? "--max-time is over"
                            : is_stuck ? "it writes its memory as fast as it can be sent"
                            : has_room ? "its memory would be sent more than four times"
                                       : "the target has no room for more copies of its memory";
  decision.why = fmt::format(
      "{}, but the process is expected to stand still for {} ms, longer than --max-downtime ({} "
      "ms)",
      cause, decision.expected_downtime.count(), limits.max_downtime.count());
  return decision;
}

}  // namespace ppmr
