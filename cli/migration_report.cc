#include "cli/migration_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/clock.h"
#include "base/json_text.h"
#include "cli/rehearsal_report.h"
#include "cli/screen/counted.h"
#include "daemon/command_line/size_option.h"
#include "daemon/command_line/table.h"

namespace ppmr {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

double seconds(int64_t from_ns, int64_t to_ns) {
  return from_ns > 0 && to_ns >= from_ns ? static_cast<double>(to_ns - from_ns) / 1e9 : -1;
}

const char* result_of(const MigrationOutcome& outcome);

// A process is slowed down noticeably if it waits for a processor for this share of its time or
// more.
constexpr double kDelayShown = 0.1;

// The table shows the uncertainty of the clocks if it is at least this part of the downtime.
constexpr double kUncertaintyShown = 0.1;

// Returns the uncertainty of the tree's downtime, in seconds; negative: unknown.
double clock_uncertainty_of(const TreeOutcome& tree) {
  return tree.clock_uncertainty_ns < 0 ? -1 : static_cast<double>(tree.clock_uncertainty_ns) / 1e9;
}

const char* done_word(const TreeOutcome& tree) {
  return tree.move.original_goes_on ? "copied" : "moved";
}

// Returns the result of one tree. A migration with the result "LOST" may have lost only some of its
// trees.
const char* result_of(const MigrationOutcome& outcome, const TreeOutcome& tree) {
  if (tree.move.is_rehearsal) {
    return outcome.exit_code == ExitCode::kSuccess ? kWouldMove : kWouldStay;
  }
  const bool arrived = tree.target.phase == TreePhase::kComplete && tree.target.lost.empty();
  return outcome.exit_code == ExitCode::kPagesLost && arrived ? done_word(tree)
                                                              : result_of(outcome);
}

const char* result_of(const MigrationOutcome& outcome) {
  switch (outcome.exit_code) {
    case ExitCode::kSuccess:
      return outcome.trees.empty() ? "moved" : done_word(outcome.trees.front());
    case ExitCode::kMigrationOpen:
      return "OPEN";
    case ExitCode::kPagesLost:
      return "LOST";
    default:
      return "stayed";
  }
}

// Returns how much the process waited for a processor; empty if that is too little to show.
std::string delay_text(const std::string& who, const json& event) {
  const auto shares = event.value("waited_shares", std::vector<double>());
  if (shares.empty()) return "";
  const double worst = *std::max_element(shares.begin(), shares.end());
  if (worst < kDelayShown) return "";
  const double mean =
      std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
  std::string text =
      fmt::format("{}: while its memory was copied, it waited for a processor {:.0f}% of its time",
                  who, mean * 100);
  if (shares.size() > 1) text += fmt::format(" ({:.0f}% in the worst second)", worst * 100);
  return text;
}

}  // namespace

std::string event_text(const json& event) {
  const std::string what = event.value("event", "");
  std::string who = "the migration";
  if (event.contains("pid"))
    who = fmt::format("{} {}", event.value("pid", 0), event.value("name", std::string("?")));
  if (what == "begun") {
    const auto more = event.value("trees", uint64_t{1}) - 1;
    return fmt::format("migration {} of {} {}{} to {} has begun", event.value("migration", ""),
                       event.value("first_pid", 0), event.value("first_name", std::string("?")),
                       more == 0 ? "" : fmt::format(" and {} more", more),
                       event.value("target", ""));
  }
  if (what == "rdma-released") {
    return fmt::format("{}: {} released RDMA", who,
                       counted(event.value("processes", uint64_t{0}), "process"));
  }
  if (what == "copying") return who + ": copying its memory while it runs";
  if (what == "paused") return "paused: nothing is copied, and the processes run on";
  if (what == "resumed") return "resumed";
  if (what == "copied") {
    return fmt::format("{}: round {}, {}", who, event.value("round", 0) + 1,
                       format_size(event.value("bytes", uint64_t{0})));
  }
  if (what == "delayed") return delay_text(who, event);
  if (what == "files_copied") {
    return fmt::format("{}: {} of files in memory and shared memory", who,
                       format_size(event.value("bytes", uint64_t{0})));
  }
  if (what == "dumping") return who + ": frozen, dumping";
  if (what == "sealed") {
    return fmt::format("{}: {} verified at the target", who,
                       format_size(event.value("bytes", uint64_t{0})));
  }
  if (what == "running" && event.value("post_copy", false)) {
    return who + ": runs at the target; until all of its memory is there, it needs both nodes";
  }
  if (what == "running") return who + ": runs at the target";
  if (what == "rehearsed") {
    return "rehearsed: here the move would be decided; what was restored is discarded";
  }
  if (what == "warning") return "warning: " + who + ": " + event.value("sentence", "");
  if (what == "complete") return who + ": all of its memory is in place";
  return "";
}

TreeTimes times_of(const TreeOutcome& tree) {
  TreeTimes times;
  times.dump = seconds(tree.source.freeze_began_ns, tree.source.held_ns);
  times.seal = seconds(tree.source.held_ns, tree.source.sealed_ns);
  times.restart = seconds(tree.source.sealed_ns, tree.target.running_ns);
  // The original of a copy runs on after a freeze, and no record has the end of that freeze.
  times.downtime = tree.move.original_goes_on
                       ? -1
                       : seconds(tree.source.freeze_began_ns, tree.target.running_ns);
  times.fill = seconds(tree.target.running_ns, tree.target.complete_ns);
  return times;
}

request::NoteOutcome outcome_note(const MigrationOutcome& outcome) {
  request::NoteOutcome note;
  const auto add = [&](const char* phase, double value) {
    if (value >= 0) note.seconds[phase].push_back(value);
  };
  for (const TreeOutcome& tree : outcome.trees) {
    const TreeTimes times = times_of(tree);
    add("downtime", times.downtime);
    add("dump", times.dump);
    add("seal", times.seal);
    add("restart", times.restart);
  }
  note.result = result_of(outcome);
  std::transform(note.result.begin(), note.result.end(), note.result.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return note;
}

namespace {

// Returns the downtime, with the uncertainty of the clocks only if it is a noticeable part of the
// downtime.
std::string downtime_cell(const TreeOutcome& tree) {
  const double downtime = times_of(tree).downtime;
  const double uncertainty = clock_uncertainty_of(tree);
  if (downtime < 0 || uncertainty < downtime * kUncertaintyShown) return format_seconds(downtime);
  return format_seconds(downtime) + " +-" + format_seconds(uncertainty);
}

bool has_promised(const std::vector<MigrationOutcome>& outcomes) {
  const auto is_promised = [](const TreeOutcome& tree) {
    return tree.promised_downtime.has_value();
  };
  return std::any_of(outcomes.begin(), outcomes.end(), [&](const MigrationOutcome& outcome) {
    return std::any_of(outcome.trees.begin(), outcome.trees.end(), is_promised);
  });
}

}  // namespace

std::string summary_text(const std::vector<MigrationOutcome>& outcomes, size_t columns) {
  std::vector<TableColumn> titles = {{"PID", true}, {"NAME"}, {"RESULT"}, {"DOWNTIME", true}};
  const bool promised = has_promised(outcomes);
  if (promised) titles.push_back({"PROMISED", true});
  titles.push_back({"BYTES", true});
  Table table(std::move(titles));
  for (const MigrationOutcome& outcome : outcomes) {
    for (const TreeOutcome& tree : outcome.trees) {
      std::vector<std::string> cells = {std::to_string(tree.plan.root.pid), tree.plan.name,
                                        result_of(outcome, tree), downtime_cell(tree)};
      if (promised) {
        cells.push_back(tree.promised_downtime ? format_time(*tree.promised_downtime) : "-");
      }
      cells.push_back(format_size(tree.sealed.bytes));
      table.add(std::move(cells));
    }
  }
  std::string text = table.text(columns);
  for (const MigrationOutcome& outcome : outcomes) {
    for (const TreeOutcome& tree : outcome.trees) {
      const std::chrono::duration<double> promised = tree.promised_downtime.value_or(0ms);
      const TreeTimes times = times_of(tree);
      if (!tree.promised_downtime || times.downtime <= promised.count()) continue;
      text += fmt::format(
          "warning: {} {}: stood still for {} (dump {}, seal {}, restart {}), longer than "
          "--max-downtime ({})\n",
          tree.plan.root.pid, tree.plan.name, format_seconds(times.downtime),
          format_seconds(times.dump), format_seconds(times.seal), format_seconds(times.restart),
          format_seconds(promised.count()));
    }
  }
  return text;
}

std::string summary_json(const std::vector<MigrationOutcome>& outcomes,
                         const std::vector<std::string>& stays, ExitCode exit_code) {
  auto trees = json::array();
  for (const MigrationOutcome& outcome : outcomes) {
    for (const TreeOutcome& tree : outcome.trees) {
      TreeTimes times = times_of(tree);
      const RehearsalTimes rehearsed = rehearsal_times_of(tree);
      if (tree.move.is_rehearsal) times.downtime = rehearsed.downtime;
      trees.push_back(
          {{"migration", outcome.id},
           {"pid", tree.plan.root.pid},
           {"name", tree.plan.name},
           {"result", result_of(outcome, tree)},
           {"error", outcome.message},
           {"bytes", tree.sealed.bytes},
           {"files", tree.sealed.files},
           {"lazily", tree.move.restores_lazily() && tree.target.running_ns > 0},
           {"post_copy", tree.move.may_run_before_memory()},
           {"freeze_began_ns", tree.source.freeze_began_ns},
           {"held_ns", tree.source.held_ns},
           {"sealed_ns", tree.source.sealed_ns},
           {"restored_ns", tree.target.held_ns},
           {"running_ns", tree.target.running_ns},
           {"complete_ns", tree.target.complete_ns},
           {"dump_s", times.dump},
           {"seal_s", times.seal},
           {"restart_s", times.restart},
           {"downtime_s", times.downtime},
           {"promised_s",
            tree.promised_downtime ? json(tree.promised_downtime->count() / 1e3) : json()},
           {"fill_s", times.fill},
           {"clock_uncertainty_s", clock_uncertainty_of(tree)}});
      if (!tree.move.is_rehearsal) continue;
      trees.back()["rehearsal"] = true;
      trees.back()["freeze_s"] = rehearsed.freeze;
    }
  }
  return json_text({{"event", "summary"},
                    {"ok", exit_code == ExitCode::kSuccess},
                    {"exit_code", to_int(exit_code)},
                    {"time_ns", realtime_ns()},
                    {"trees", trees},
                    {"stays", stays}}) +
         "\n";
}

}  // namespace ppmr
