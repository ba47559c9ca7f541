#include "migration/source/live_rounds.h"

#include <fmt/format.h>

#include <algorithm>

namespace ppmr {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// What a move stands still for without memory to send: CRIU's description, restore and the
// decision, 0.1 s for a small process; and what the kernel counts for CRIU in /proc/PID/smaps, 20
// ms for each GiB (bench/run --only shapes).
constexpr nanoseconds kFixedPart{100'000'000};
constexpr double kFixedPerByteNs = 20e6 / (1 << 30);
// A round costs about 10 ms for its page reader and its confirmation. To send less than this
// while the tree is frozen costs no more.
constexpr nanoseconds kShortTransfer{5'000'000};
// A rate is measured with rounds that are long enough.
constexpr uint64_t kMeasuredMinBytes = uint64_t{1} << 20;
constexpr double kAssumedBytesPerNs = 0.25;
constexpr double kHeldBackShare = 0.7;
// Each round holds a copy at the target until the move ends.
constexpr double kSentMaxTimesMemory = 4;
constexpr uint64_t kSmallMemoryBytes = uint64_t{64} << 20;
constexpr double kRoomMinTimes = 2.1;

// Whether --max-rate made the round as long as it was, and not the link.
bool was_held_back(const Round& round) {
  const double most_bytes = static_cast<double>(round.max_rate_bytes_per_s) * 1e-9 *
                            static_cast<double>(round.took.count());
  return most_bytes > 0 && static_cast<double>(round.bytes) > kHeldBackShare * most_bytes;
}

// The rate of what travels frozen, which --max-rate does not hold back.
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

// How often `bytes` are the memory of the tree.
double times_memory(uint64_t bytes, uint64_t memory_bytes) {
  return static_cast<double>(bytes) /
         static_cast<double>(std::max(memory_bytes, kSmallMemoryBytes));
}

}  // namespace

bool fits_with_rounds(uint64_t sent_bytes, uint64_t rest_bytes, uint64_t memory_bytes,
                      const LiveLimits& limits) {
  return times_memory(sent_bytes + rest_bytes, memory_bytes) + 1 <= limits.room_times;
}

bool has_room_for_rounds(const LiveLimits& limits) { return limits.room_times >= kRoomMinTimes; }

Result<OnTimeout> parse_on_timeout(const std::string& text) {
  if (text == "freeze") return OnTimeout::kFreeze;
  if (text == "cancel") return OnTimeout::kCancel;
  return failure(EINVAL, "'" + text + "' is neither freeze nor cancel");
}

RoundDecision decide_round(const std::vector<Round>& rounds, uint64_t pending_bytes,
                           nanoseconds elapsed, const LiveLimits& limits) {
  const double rate = rate_of(rounds);
  const nanoseconds transfer{static_cast<int64_t>(static_cast<double>(pending_bytes) / rate)};
  const auto memory_bytes = static_cast<double>(rounds.front().bytes);
  const nanoseconds fixed = limits.fixed_part.value_or(
      kFixedPart + nanoseconds{static_cast<int64_t>(memory_bytes * kFixedPerByteNs)});
  RoundDecision decision;
  decision.expected_downtime = duration_cast<milliseconds>(fixed + transfer);
  const bool fits = fixed + transfer <= limits.max_downtime;
  const bool halves = pending_bytes <= rounds.back().bytes / 2;
  const bool in_time = elapsed < limits.max_time;
  const bool is_short = transfer <= kShortTransfer;
  if (fits && (is_short || !halves || !in_time)) {
    decision.next = NextStep::kFreeze;
    return decision;
  }
  uint64_t sent_bytes = 0;
  for (const Round& round : rounds) sent_bytes += round.bytes;
  const auto shrinks = [](uint64_t bytes, uint64_t earlier) { return bytes < earlier / 10 * 9; };
  const bool is_stuck = rounds.size() >= 2 && !shrinks(pending_bytes, rounds.back().bytes) &&
                        !shrinks(rounds.back().bytes, rounds[rounds.size() - 2].bytes);
  const uint64_t with_next_bytes = sent_bytes + pending_bytes;
  const bool is_costly = times_memory(with_next_bytes, rounds.front().bytes) > kSentMaxTimesMemory;
  // During the next round as much may be written again.
  const bool has_room =
      fits_with_rounds(with_next_bytes, pending_bytes, rounds.front().bytes, limits);
  if (!is_short && in_time && !is_stuck && !is_costly && has_room) return decision;
  decision.next =
      !fits && limits.on_timeout == OnTimeout::kCancel ? NextStep::kCancel : NextStep::kFreeze;
  if (fits) return decision;
  const char* const cause = is_short   ? "little of its memory is left to send"
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
