#include "cli/rehearsal_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/command_line/size_option.h"

namespace ppmr {
namespace {

constexpr const char* kRow = "{:>8}  {:<16} {:<10} {:>10} {:>10} {:>10}\n";

double seconds(int64_t from_ns, int64_t to_ns) {
  return from_ns > 0 && to_ns >= from_ns ? static_cast<double>(to_ns - from_ns) / 1e9 : -1;
}

std::string cell(double seconds) {
  if (seconds < 0) return "-";
  return format_time(std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
}

std::string row_of(const MigrationOutcome& outcome, const TreeOutcome& tree) {
  const bool would_move = outcome.exit_code == ExitCode::kSuccess;
  const RehearsalTimes times = rehearsal_times_of(tree);
  return fmt::format(kRow, tree.plan.root.pid, tree.plan.name, would_move ? kWouldMove : kWouldStay,
                     cell(times.freeze), cell(times.downtime),
                     would_move ? format_size(tree.sealed.bytes) : "-");
}

std::string row_of_excluded(const std::string& tree) {
  const size_t blank = tree.find(' ');
  std::string name = blank == std::string::npos ? "" : tree.substr(blank + 1);
  if (name.starts_with('(') && name.ends_with(')')) name = name.substr(1, name.size() - 2);
  return fmt::format(kRow, tree.substr(0, blank), name, kWouldStay, "-", "-", "-");
}

}  // namespace

RehearsalTimes rehearsal_times_of(const TreeOutcome& tree) {
  return {.freeze = seconds(tree.source.freeze_began_ns, tree.goes_on_ns),
          .downtime = seconds(tree.source.freeze_began_ns, tree.decided_ns)};
}

std::string rehearsal_text(const std::vector<MigrationOutcome>& outcomes,
                           const std::vector<std::string>& stays) {
  std::string text = fmt::format(kRow, "PID", "NAME", "RESULT", "FREEZE", "DOWNTIME", "BYTES");
  size_t would_move = 0;
  size_t all = stays.size();
  for (const MigrationOutcome& outcome : outcomes) {
    for (const TreeOutcome& tree : outcome.trees) {
      text += row_of(outcome, tree);
      would_move += outcome.exit_code == ExitCode::kSuccess ? 1 : 0;
      ++all;
    }
  }
  for (const std::string& tree : stays) text += row_of_excluded(tree);
  return text + fmt::format("{} of {} would move; nothing was moved\n", would_move, all);
}

}  // namespace ppmr
