// The migrations of `ppmr migrate`: one for all trees, or one for each, several at a time, while
// the main thread waits for signals.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/without_exceptions.h"
#include "cli/interruption.h"
#include "cli/migrate_steps.h"
#include "cli/migration_progress.h"
#include "cli/migration_report.h"
#include "cli/taken_pid.h"
#include "daemon/command_line/terminal_style.h"
#include "daemon/control/mount_daemon.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// Returns how many independent migrations run at once. Each keeps a connection and an agent at the
// target. A target allows 64 agents for each peer (kAgentsOfPeerMax in daemon/privilege), and this
// node may run a second `ppmr evacuate`. More than four migrations for each dump gain nothing:
// while one tree is dumped, the others are prepared, restored, or ended.
size_t moves_at_once(unsigned jobs) {
  constexpr size_t kMovesMin = 8;
  constexpr size_t kMovesMax = 24;
  return std::clamp<size_t>(size_t{4} * jobs, kMovesMin, kMovesMax);
}

// How often a move begins if it is aborted each time because the target has a process with a needed
// pid.
constexpr int kAttemptsMax = 3;
constexpr milliseconds kPidPatience{10'000};
constexpr milliseconds kPidInterval{200};

json begins_again(const MigrationOutcome& outcome, const std::string& sentence) {
  return {{"event", "warning"},
          {"time_ns", realtime_ns()},
          {"migration", outcome.id},
          {"pid", outcome.trees.empty() ? 0 : outcome.trees.front().plan.root.pid},
          {"name", outcome.trees.empty() ? "" : outcome.trees.front().plan.name},
          {"sentence", sentence}};
}

}  // namespace

// Waits for some seconds, and returns whether the pid is free at the target. The process that has
// the pid started after the checks. Mostly it is a command that ends by itself.
bool Migrate::becomes_free(pid_t pid, const std::atomic<bool>& stop) const {
  const auto deadline = std::chrono::steady_clock::now() + kPidPatience;
  AgentClient agent(parse_endpoint(settings_.endpoint));
  PreflightQuestions questions;
  questions.pids = {pid};
  while (!stop) {
    const auto answers = ask_target(questions, agent);
    if (!answers) return false;
    if (answers->pids_taken.empty()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPidInterval);
  }
  return false;
}

std::vector<MigrationOutcome> Migrate::migrate(const RecordStore& store) {
  Interruption interruption;
  if (is_rehearsal()) settings_.unit.name.clear();  // rehearses the processes, not the unit
  const ProgressStyle style = command_.quiet  ? ProgressStyle::kNone
                              : command_.json ? ProgressStyle::kJson
                              : TerminalStyle::of(STDERR_FILENO).moves_cursor()
                                  ? ProgressStyle::kTerminal
                                  : ProgressStyle::kLines;
  MigrationProgress progress(settings_.mount, style);
  settings_.on_event = [&](const json& event) { progress.on_event(event); };
  std::vector<TreePlan> trees;
  for (size_t i = 0; i < trees_.size(); ++i) {
    const ProcessStat& root = trees_[i].processes.front();
    TreePlan plan{root.identity(), root.name, {}, memory_bytes_[i]};
    if (const auto found = containers_.find(root.pid); found != containers_.end()) {
      const ContainerState& state = found->second.state;
      plan.name = state.name;
      plan.container = {state.name, state.bundle, state.created};
    }
    trees.push_back(std::move(plan));
    progress.add_process(trees.back().root.pid, trees.back().name, memory_bytes_[i]);
  }
  progress.start();
  JobSlots slots(static_cast<std::ptrdiff_t>(std::max(command_.jobs, 1u)));
  std::vector<std::vector<TreePlan>> moves;
  if (command_.independent) {
    for (TreePlan& tree : trees) moves.push_back({std::move(tree)});
  } else {
    moves.push_back(std::move(trees));
  }
  std::vector<MigrationOutcome> outcomes(moves.size());
  std::atomic<size_t> next = 0;
  // Each attempt has its own Migration, whose end closes the connection to the target.
  const auto move_once = [&](size_t i, const MigrationSettings& settings) {
    const auto outcome = without_exceptions([&]() -> Result<MigrationOutcome> {
      return Migration(store, settings, moves[i], slots, interruption.flag()).run();
    });
    outcomes[i] = outcome ? *outcome
                          : MigrationOutcome{ExitCode::kMigrationOpen,
                                             "unfinished: " + outcome.error().message +
                                                 ". Run `ppmr migrate --recover` here",
                                             "",
                                             {}};
    // Sends the outcome for the metrics. The daemon may have ended in the meantime.
    const bool refused =
        outcomes[i].exit_code == ExitCode::kMigrationAborted && outcomes[i].trees.empty();
    if (refused || is_rehearsal()) return;  // the metrics count only moves that have begun
    (void)without_exceptions([&]() -> Status {
      (void)ask(settings_.mount, to_request(outcome_note(outcomes[i])));
      return {};
    });
  };
  const MigrationSettings post_copy = as_post_copy();
  const auto move_one = [&](size_t i) {
    const MigrationSettings* settings = &settings_;
    for (int attempt = 1;; ++attempt) {
      move_once(i, *settings);
      const bool may_begin_again =
          settings->live.on_timeout == OnTimeout::kPostCopy && !interruption.flag();
      if (outcomes[i].breaks_promise && may_begin_again) {
        settings_.on_event(begins_again(
            outcomes[i], outcomes[i].message + "; the move begins again with --post-copy"));
        settings = &post_copy;
        continue;
      }
      const auto pid = taken_pid(outcomes[i]);
      if (!pid || attempt == kAttemptsMax || !settings_.id.empty()) return;
      if (!becomes_free(*pid, interruption.flag())) return;
      settings_.on_event(begins_again(
          outcomes[i], fmt::format("another process had pid {} at the target when it was needed; "
                                   "the pid is free again, and the move begins again",
                                   *pid)));
    }
  };
  std::vector<std::thread> threads;
  const size_t thread_count = std::min(moves.size(), moves_at_once(command_.jobs));
  std::atomic<size_t> left = thread_count;
  const auto move_all = [&] {
    for (size_t i = next++; i < moves.size(); i = next++) move_one(i);
    --left;
  };
  while (threads.size() < thread_count) {
    const Status started = without_exceptions([&]() -> Status {
      threads.emplace_back(move_all);
      return {};
    });
    if (started) continue;
    // The threads that have started do the work. If none has started, the main thread does it.
    left -= thread_count - threads.size();
    if (threads.empty()) {
      ++left;
      move_all();
    }
    break;
  }
  while (left > 0) interruption.poll_signals(milliseconds(20));
  for (std::thread& thread : threads) thread.join();
  progress.stop();
  return outcomes;
}

}  // namespace ppmr
