// `ppmr migrate`: the order of its steps, and what it prints: findings, needs and the outcomes.
#include "cli/migrate_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/clock.h"
#include "base/descriptor_limit.h"
#include "base/json_text.h"
#include "cli/migrate_steps.h"
#include "cli/migration_report.h"
#include "cli/rehearsal_report.h"
#include "cli/screen/one_line.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/terminal_style.h"
#include "migration/settle/settle.h"

namespace ppmr {
namespace {

using nlohmann::json;

// Ranks exit codes: if outcomes differ, the command returns the exit code of the worst one.
int severity_of(ExitCode code) {
  switch (code) {
    case ExitCode::kSuccess:
      return 0;
    case ExitCode::kMigrationAborted:
      return 1;
    case ExitCode::kPagesLost:
      return 2;
    default:
      return 3;
  }
}

}  // namespace

void Migrate::print_findings() const {
  for (const Finding& finding : findings_) {
    const bool stops = finding.severity == Severity::kStops;
    if (command_.quiet && !stops) continue;
    if (command_.json) {
      print_whole(stdout, "{}\n",
                  json_text({{"event", "finding"},
                             {"time_ns", realtime_ns()},
                             {"stops", stops},
                             {"sentence", finding.sentence},
                             {"remedy", finding.remedy}}));
    } else {
      const TerminalStyle style = TerminalStyle::of(STDERR_FILENO);
      print_to(stderr, "{}: {}\n", stops ? style.bad("stops the move") : "warning",
               one_line(text_of(finding)));
    }
  }
}

// Prints the memory that the processes need at the target. Only --json has this event.
void Migrate::print_needs() const {
  if (!command_.json) return;
  const uint64_t bytes = std::accumulate(memory_bytes_.begin(), memory_bytes_.end(), uint64_t{0});
  print_whole(
      stdout, "{}\n",
      json_text({{"event", "checked"}, {"time_ns", realtime_ns()}, {"memory_bytes", bytes}}));
}

int Migrate::run() {
  const auto failed = [&](const CommandError& error) {
    return report(command_.name, error, command_.json);
  };
  ignore_sigpipe();
  raise_descriptor_limit();  // ppmr needs some descriptors for each tree and one for each task
  request_ = command_.move;
  request_.container = !command_.containers.empty();
  const auto wanted = plan_move(request_);
  if (!wanted) return failed({ExitCode::kUsage, wanted.error().message});
  if (!command_.id.empty() && command_.independent) {
    return failed({ExitCode::kUsage, "--id excludes --independent: each tree has a migration"});
  }
  if (auto checked = command_.check_values(); !checked) return failed(checked.error());
  settings_.id = command_.id;
  settings_.plan = *wanted;
  auto store = RecordStore::open(command_.state_directory);
  if (!store) return failed({ExitCode::kFailure, store.error().message});
  if (auto target = find_target(); !target) return failed(target.error());
  if (auto unit = find_unit(); !unit) return failed(unit.error());
  if (auto alone = find_rivals(*store); !alone) return failed(alone.error());
  if (auto trees = find_trees(); !trees) return failed(trees.error());
  if (auto checked = check_both_sides(); !checked) return failed(checked.error());
  finish_plan();
  print_findings();
  for (const std::string& tree : excluded_) {
    print_error("ppmr " + command_.name, one_line(tree) + " stays because of the findings above");
  }
  if (stops(findings_) || trees_.empty()) {
    return failed(
        {ExitCode::kMigrationAborted, command_.dry_run || is_rehearsal()
                                          ? "the findings above stop the move"
                                          : "nothing was moved because of the findings above"});
  }
  ExitCode worst = excluded_.empty() ? ExitCode::kSuccess : ExitCode::kMigrationAborted;
  print_needs();
  if (command_.dry_run) {
    if (!command_.quiet) print_estimate(*store);
    if (command_.json) print_whole(stdout, "{}", summary_json({}, excluded_, worst));
    if (!command_.json && !command_.quiet && excluded_.empty()) {
      print_to(stdout, "no finding stops the move\n");
    }
    return to_int(worst);
  }
  // The remains of aborted migrations at the target would block this migration.
  settle_mount(*store, MigrationRole::kSource, settings_.mount.mountpoint, kSettlePatience);
  const auto outcomes = migrate(*store);
  store->prune();
  for (const MigrationOutcome& outcome : outcomes) {
    if (severity_of(outcome.exit_code) > severity_of(worst)) worst = outcome.exit_code;
  }
  if (!command_.quiet) {
    const size_t columns = columns_of_output(stdout);
    if (command_.json) {
      print_whole(stdout, "{}", summary_json(outcomes, excluded_, worst));
    } else {
      print_text(stdout, is_rehearsal() ? rehearsal_text(outcomes, excluded_, columns)
                                        : summary_text(outcomes, columns));
    }
  }
  for (const MigrationOutcome& outcome : outcomes) {
    if (outcome.exit_code == ExitCode::kSuccess) continue;
    print_error("ppmr " + command_.name, outcome.message);
  }
  print_manual_section("ppmr " + command_.name, worst);
  return to_int(worst);
}

int MigrateCommand::run() const { return Migrate(*this).run(); }

}  // namespace ppmr
