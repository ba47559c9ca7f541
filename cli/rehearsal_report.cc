#include "cli/rehearsal_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/command_line/size_option.h"
#include "daemon/command_line/table.h"

namespace ppmr {
namespace {

double seconds(int64_t from_ns, int64_t to_ns) {
  return from_ns > 0 && to_ns >= from_ns ? static_cast<double>(to_ns - from_ns) / 1e9 : -1;
}

std::vector<std::string> row_of(const MigrationOutcome& outcome, const TreeOutcome& tree) {
  const bool would_move = outcome.exit_code == ExitCode::kSuccess;
  const RehearsalTimes times = rehearsal_times_of(tree);
  return {std::to_string(tree.plan.root.pid),   tree.plan.name,
          would_move ? kWouldMove : kWouldStay, format_seconds(times.freeze),
          format_seconds(times.downtime),       would_move ? format_size(tree.sealed.bytes) : "-"};
}

std::vector<std::string> row_of_excluded(const std::string& tree) {
  const size_t blank = tree.find(' ');
  std::string name = blank == std::string::npos ? "" : tree.substr(blank + 1);
  if (name.starts_with('(') && name.ends_with(')')) name = name.substr(1, name.size() - 2);
  return {tree.substr(0, blank), name, kWouldStay, "-", "-", "-"};
}

}  // namespace

RehearsalTimes rehearsal_times_of(const TreeOutcome& tree) {
  return {.freeze = seconds(tree.source.freeze_began_ns, tree.goes_on_ns),
          .downtime = seconds(tree.source.freeze_began_ns, tree.decided_ns)};
}

std::string rehearsal_text(const std::vector<MigrationOutcome>& outcomes,
                           const std::vector<std::string>& stays, size_t columns) {
  Table table(
      {{"PID", true}, {"NAME"}, {"RESULT"}, {"FREEZE", true}, {"DOWNTIME", true}, {"BYTES", true}});
  size_t would_move = 0;
  size_t all = stays.size();
  for (const MigrationOutcome& outcome : outcomes) {
    for (const TreeOutcome& tree : outcome.trees) {
      table.add(row_of(outcome, tree));
      would_move += outcome.exit_code == ExitCode::kSuccess ? 1 : 0;
      ++all;
    }
  }
  for (const std::string& tree : stays) table.add(row_of_excluded(tree));
  return table.text(columns) +
         fmt::format("{} of {} would move; nothing was moved\n", would_move, all);
}

}  // namespace ppmr
