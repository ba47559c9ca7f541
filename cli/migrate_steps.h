// `ppmr migrate`, step by step. Each file of Migrate holds one step:
//   migrate_selection.cc   what moves, and to which target
//   migrate_checks.cc      the checks on both nodes, and the plan that results
//   migrate_estimate.cc    what a dry run expects of the move
//   migrate_moves.cc       the migrations themselves
// migrate_command.cc has the order of the steps, and what the command prints.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/estimate_report.h"
#include "cli/migrate_command.h"
#include "daemon/command_line/command_error.h"
#include "migration/source/migration.h"
#include "preflight/preflight.h"

namespace ppmr {

// How long the command waits until interrupted migrations of the mount are settled.
inline constexpr std::chrono::milliseconds kSettlePatience{2000};

// One call of `ppmr migrate`.
// Threads: one; migrate() starts others, and waits for them.
class Migrate {
 public:
  explicit Migrate(const MigrateCommand& command) : command_(command) {}
  int run();

 private:
  CommandResult<void> find_target();
  CommandResult<void> find_containers();
  CommandResult<void> find_unit();
  CommandResult<void> find_rivals(const RecordStore& store);
  CommandResult<void> find_trees();
  CommandResult<void> find_independent_trees(const std::vector<pid_t>& roots);
  void exclude(const std::string& name, std::vector<Finding> findings);
  CommandResult<void> check_both_sides();
  CommandResult<void> check_together(const NodeFacts& here, AgentClient& agent);
  CommandResult<void> check_separately(const NodeFacts& here, AgentClient& agent);
  Result<TreeFacts> gather(const ProcessTree& tree);
  static Result<PreflightAnswers> ask_target(const PreflightQuestions& questions,
                                             AgentClient& agent);
  static CommandResult<void> ask_about(std::span<const PreflightQuestions> questions,
                                       AgentClient& agent, std::vector<PreflightAnswers>& answers);
  void note_abilities(const NodeFacts& here, const NodeFacts& target, const TreeFacts& tree);
  void finish_plan();
  void limit_rounds();
  void move_without_rounds(const std::string& why, const std::string& remedy);
  void warn_of_post_copy(const char* option);
  MigrationSettings as_post_copy() const;
  void print_findings() const;
  void print_needs() const;
  void print_estimate(const RecordStore& store) const;
  EstimatedMove estimate_together(const std::vector<size_t>& trees,
                                  const std::vector<Result<WriteSample>>& samples,
                                  double rate_bytes_per_s) const;
  bool becomes_free(pid_t pid, const std::atomic<bool>& stop) const;
  std::vector<MigrationOutcome> migrate(const RecordStore& store);

  bool is_rehearsal() const { return command_.move.rehearse; }
  std::vector<pid_t> wanted_pids() const {
    if (unit_main_ != 0) return {unit_main_};
    return {command_.pids.begin(), command_.pids.end()};
  }

  const MigrateCommand& command_;
  pid_t unit_main_ = 0;  // the main process of the unit that moves
  MigrationSettings settings_;
  MoveOptions move_options_;
  MoveRequest request_;
  MoveAbilities abilities_;  // of both nodes, as far as known
  std::vector<ProcessTree> trees_;
  std::map<pid_t, ContainerFacts> containers_;  // key: the root of its tree
  std::map<pid_t, std::string> rivals_;         // key: a root that another migration moves
  std::string processor_;
  KnownDigests digests_;
  std::vector<Finding> findings_;
  std::vector<uint64_t> memory_bytes_;  // estimate for each tree
  std::string target_name_;             // as the target calls itself
  // The free memory of the target, and the free room of its image store.
  uint64_t memory_room_bytes_ = UINT64_MAX;
  uint64_t store_room_bytes_ = UINT64_MAX;
  std::vector<std::string> excluded_;  // names of trees that stay without stopping the others
};

}  // namespace ppmr
