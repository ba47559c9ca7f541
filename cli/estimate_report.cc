#include "cli/estimate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cli/screen/counted.h"
#include "cli/screen/one_line.h"
#include "daemon/command_line/size_option.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr size_t kProcessesShown = 20;
constexpr uint64_t kFrozenShownBytes = 1 << 20;

std::string line(const char* label, const std::string& text) {
  return fmt::format("{:<13}{}\n", label, text);
}

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// Returns ", writes 12.0 MiB of it in 0.8 s", which follows the size of the memory; empty without a
// sample.
std::string writes_text(const WriteSample& sample) {
  if (sample.written.empty()) return "";
  const WrittenAfter& last = sample.written.back();
  const auto time = format_time(std::chrono::duration_cast<std::chrono::microseconds>(last.after));
  if (last.bytes == 0) return fmt::format(", writes nothing in {}", time);
  return fmt::format(", writes {} of it in {}", format_size(last.bytes), time);
}

milliseconds time_to_send(const FrozenMemory& memory, const MoveEstimate& estimate) {
  const double rate = std::max(estimate.rate_bytes_per_s, 1.0);
  return milliseconds(std::llround(static_cast<double>(memory.bytes) / rate * 1e3));
}

std::string processes_text(const EstimatedMove& move) {
  std::string text;
  for (size_t i = 0; i < std::min(move.processes.size(), kProcessesShown); ++i) {
    const EstimatedProcess& process = move.processes[i];
    text += line(i > 0                        ? ""
                 : move.processes.size() == 1 ? "process"
                                              : "processes",
                 fmt::format("{} {}", process.pid, one_line(process.command_line)));
  }
  if (move.processes.size() > kProcessesShown) {
    text += line("", fmt::format("and {} more", move.processes.size() - kProcessesShown));
  }
  return text;
}

// Returns a line for each piece of memory that prolongs the downtime, because no round can copy it.
// Leaves out pieces of less than 1 MiB.
std::string frozen_text(const EstimatedMove& move) {
  std::string text;
  for (const FrozenMemory& memory : move.frozen) {
    if (memory.bytes < kFrozenShownBytes) continue;
    text += line(text.empty() ? "frozen" : "",
                 fmt::format("{} {}: {} of {}, about {}", memory.pid, one_line(memory.name),
                             format_size(memory.bytes), memory.kind,
                             format_time(time_to_send(memory, move.estimate))));
  }
  return text;
}

std::string expected_text(const EstimateReport& report, const EstimatedMove& move) {
  const MoveEstimate& estimate = move.estimate;
  if (estimate.stays) {
    return line("expected",
                fmt::format("cancelled after {}: {}", format_time(estimate.time), estimate.why));
  }
  std::string text = fmt::format("about {}, downtime about {}", format_time(estimate.time),
                                 format_time(estimate.downtime));
  if (report.promised_downtime) {
    text += fmt::format(" (promised: {})", format_time(*report.promised_downtime));
  }
  std::string sent = format_size(estimate.sent_bytes);
  if (estimate.rounds > 0) {
    sent += ", " + counted(estimate.rounds, "round");
  }
  text = line("expected", text) + line("sent", sent);
  if (!estimate.why_post_copy.empty()) {
    text += line("", "begins again with --post-copy: " + estimate.why_post_copy);
  }
  if (report.promised_downtime && estimate.downtime > *report.promised_downtime) {
    const std::string cause = !estimate.why.empty()      ? estimate.why
                              : !move.why_frozen.empty() ? move.why_frozen
                              : estimate.is_crowd        ? "CRIU needs that for so many processes"
                                                         : "memory that no round can copy";
    text += line("", "the promise would not be kept: " + cause);
  }
  return text;
}

json move_json(const EstimatedMove& move) {
  auto processes = json::array();
  for (const EstimatedProcess& process : move.processes) {
    processes.push_back({{"pid", process.pid}, {"command_line", process.command_line}});
  }
  auto frozen = json::array();
  for (const FrozenMemory& memory : move.frozen) {
    frozen.push_back({{"pid", memory.pid},
                      {"name", memory.name},
                      {"kind", memory.kind},
                      {"bytes", memory.bytes},
                      {"time_s", seconds(time_to_send(memory, move.estimate))}});
  }
  json written = nullptr;
  json over_s = nullptr;
  if (move.sample && !move.sample->written.empty()) {
    written = move.sample->written.back().bytes;
    over_s = seconds(move.sample->written.back().after);
  }
  return {{"processes", processes},
          {"memory_bytes", move.memory_bytes},
          {"frozen", frozen},
          {"written_bytes", written},
          {"written_over_s", over_s},
          {"why_frozen", move.why_frozen},
          {"sent_bytes", move.estimate.sent_bytes},
          {"rounds", move.estimate.rounds},
          {"time_s", seconds(move.estimate.time)},
          {"downtime_s", seconds(move.estimate.downtime)},
          {"stays", move.estimate.stays},
          {"why_post_copy", move.estimate.why_post_copy},
          {"why", move.estimate.why}};
}

}  // namespace

std::string estimate_text(const EstimateReport& report) {
  std::string text = line("target", report.target);
  if (!report.moves.empty()) {
    text += line(
        "rate",
        fmt::format(
            "{}/s, {}",
            format_size(static_cast<uint64_t>(report.moves.front().estimate.rate_bytes_per_s)),
            report.rate_is_measured ? "as in the last move to this target"
                                    : "assumed: no move to this target was large enough to tell"));
  }
  milliseconds all{0};
  for (const EstimatedMove& move : report.moves) {
    if (report.moves.size() > 1) text += "\n";
    text += processes_text(move);
    text += line("memory",
                 format_size(move.memory_bytes) + (move.sample ? writes_text(*move.sample) : ""));
    if (!move.why_frozen.empty()) text += line("", "sent while frozen: " + move.why_frozen);
    text += frozen_text(move) + expected_text(report, move);
    all += move.estimate.time;
  }
  if (report.moves.size() > 1) {
    text += "\n" + line("all", fmt::format("at most about {}, {} moves", format_time(all),
                                           report.moves.size()));
  }
  if (report.is_post_copy) {
    text += line("", "until all memory is there, the processes run, but need both nodes");
  }
  return text;
}

json estimate_json(const EstimateReport& report) {
  auto moves = json::array();
  double rate = 0;
  for (const EstimatedMove& move : report.moves) {
    moves.push_back(move_json(move));
    rate = move.estimate.rate_bytes_per_s;
  }
  return {{"event", "estimate"},
          {"time_ns", realtime_ns()},
          {"target", report.target},
          {"rate_bytes_per_s", rate},
          {"rate_is_measured", report.rate_is_measured},
          {"promised_s",
           report.promised_downtime ? json(report.promised_downtime->count() / 1e3) : json()},
          {"moves", moves}};
}

}  // namespace ppmr
