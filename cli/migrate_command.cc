// `ppmr migrate`: finds the trees and the target, runs the checks and the migrations, and reports
// the outcomes.
#include "cli/migrate_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <thread>

#include "base/clock.h"
#include "base/descriptor_limit.h"
#include "base/json_text.h"
#include "base/without_exceptions.h"
#include "cli/interruption.h"
#include "cli/migration_progress.h"
#include "cli/migration_report.h"
#include "cli/move_ends.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "daemon/command_line/terminal_style.h"
#include "daemon/control/mount_daemon.h"
#include "migration/relay/unit_fate.h"
#include "migration/settle/settle.h"
#include "migration/source/migration.h"
#include "migration/source/rival.h"
#include "preflight/preflight.h"
#include "preflight/shared_questions.h"
#include "preflight/systemd_unit.h"
#include "restart_loader/criu/cpu_check.h"
#include "restart_loader/criu/passed_options.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kDefaultHoldLimit{120'000};
constexpr milliseconds kPreflightTimeout{60'000};
constexpr milliseconds kSettlePatience{2000};

// How many independent migrations run at once. Each keeps a connection and an agent at the target,
// which allows 64 for each peer (kAgentsOfPeerMax in daemon/privilege), and this node may run a
// second `ppmr evacuate`. More than four for each dump gain nothing: while one tree is dumped, the
// others are prepared, restored, or ended.
size_t moves_at_once(unsigned jobs) {
  constexpr size_t kMovesMin = 8;
  constexpr size_t kMovesMax = 24;
  return std::clamp<size_t>(size_t{4} * jobs, kMovesMin, kMovesMax);
}

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

class Migrate {
 public:
  explicit Migrate(const MigrateCommand& command) : command_(command) {}
  int run();

 private:
  CommandResult<void> find_target();
  CommandResult<void> find_containers();
  CommandResult<void> find_unit();
  CommandResult<void> find_rivals(const RecordStore& store) const;
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
  void print_findings() const;
  void print_needs() const;
  std::vector<MigrationOutcome> migrate(const RecordStore& store);

  std::vector<pid_t> wanted_pids() const {
    if (unit_main_ != 0) return {unit_main_};
    return {command_.pids.begin(), command_.pids.end()};
  }

  const MigrateCommand& command_;
  pid_t unit_main_ = 0;  // of the unit that moves
  MigrationSettings settings_;
  MoveOptions move_options_;
  MoveRequest request_;
  MoveAbilities abilities_;  // as far as known
  std::vector<ProcessTree> trees_;
  std::map<pid_t, ContainerFacts> containers_;  // key: the root
  std::string processor_;
  KnownDigests digests_;
  std::vector<Finding> findings_;
  std::vector<uint64_t> memory_bytes_;  // estimate for each tree
  // At the target.
  uint64_t memory_room_bytes_ = UINT64_MAX;
  uint64_t store_room_bytes_ = UINT64_MAX;
  std::vector<std::string> excluded_;  // names of trees that stay without stopping the others
};

CommandResult<void> Migrate::find_target() {
  auto ends = find_move_ends(
      {command_.mountpoint, command_.target_host, command_.key_file, command_.state_directory});
  if (!ends) return tl::unexpected(ends.error());
  settings_.mount = std::move(ends->mount);
  settings_.endpoint = std::move(ends->endpoint);
  auto criu = find_criu();
  if (!criu) return command_failure(ExitCode::kFailure, criu.error().message);
  settings_.criu = *criu;
  if (auto passed = check_passed_options(command_.criu_options); !passed) {
    return command_failure(ExitCode::kUsage, passed.error().message);
  }
  settings_.criu_options = command_.criu_options;
  settings_.hold_limit = command_.timeout.value_or(kDefaultHoldLimit);
  settings_.release_timeout = command_.release_timeout;
  settings_.live = command_.limits;
  settings_.hooks = command_.hooks;
  if (Status safe = check_hooks(settings_.hooks); !safe) {
    return command_failure(ExitCode::kUsage, "--hook: " + safe.error().message);
  }
  if (settings_.hold_limit <= milliseconds(0) || settings_.hold_limit > kHoldLimitMax) {
    return command_failure(ExitCode::kUsage, "--timeout must be more than 0 and at most 24 h");
  }
  if (settings_.live.max_downtime <= milliseconds(0)) {
    return command_failure(ExitCode::kUsage, "--max-downtime must be more than 0");
  }
  if (settings_.live.max_time <= milliseconds(0)) {
    return command_failure(ExitCode::kUsage,
                           "--max-time must be more than 0; --stop-and-copy copies nothing while "
                           "the processes run");
  }
  return {};
}

CommandResult<void> Migrate::find_containers() {
  if (command_.containers.empty()) return {};
  const auto refuse = [](const std::string& why) {
    return command_failure(ExitCode::kUsage, "--runc: " + why);
  };
  if (auto options = runc_options(command_.criu_options); !options) {
    return refuse(options.error().message);
  }
  for (const std::string& name : command_.containers) {
    auto facts = gather_container_facts(name);
    if (!facts) return refuse(facts.error().message);
    if (facts->state.pid <= 0) return refuse(name + " is " + facts->state.status);
    containers_.emplace(facts->state.pid, std::move(*facts));
  }
  return {};
}

bool is_in_own_namespace(pid_t pid, const char* name) {
  std::error_code error;
  const auto theirs =
      std::filesystem::read_symlink(fmt::format("/proc/{}/ns/{}", pid, name), error);
  const auto ours = std::filesystem::read_symlink(fmt::format("/proc/self/ns/{}", name), error);
  return theirs != ours;
}

// The unit moves with its main process and all of that process's descendants.
CommandResult<void> Migrate::find_unit() {
  if (command_.unit.empty()) return {};
  UnitRecord& unit = settings_.unit;
  unit.name = command_.unit.ends_with(".service") ? command_.unit : command_.unit + ".service";
  const auto refuse = [&](const std::string& why) {
    return command_failure(ExitCode::kUsage, fmt::format("--unit {}: {}", unit.name, why));
  };
  if (!is_service_name(unit.name)) return refuse("not the name of a service");
  if (command_.move.leave_running)
    return refuse("a unit moves; it cannot be copied (--leave-running)");
  // Another name of the unit would not be found in its control group.
  const auto id = unit_property(unit.name, "Id");
  if (!id || !is_service_name(*id)) return refuse(id ? "no service" : id.error().message);
  unit.name = *id;
  const UnitFacts facts = ask_unit({.name = unit.name});
  if (!facts.problem.empty()) return refuse(facts.problem);
  if (facts.active_state != "active" || facts.main_pid <= 0) {
    return refuse(fmt::format("the unit is {} and has the main process {}", facts.active_state,
                              facts.main_pid));
  }
  unit.enabled = facts.file_state == "enabled";
  const auto tasks = tasks_of_tree(facts.main_pid);
  if (!tasks) return refuse(tasks.error().message);
  for (const pid_t pid : members_of_control_group(facts.control_group)) {
    const bool moves = std::any_of(tasks->begin(), tasks->end(),
                                   [pid](const ProcessIdentity& task) { return task.pid == pid; });
    if (!moves) {
      return refuse(
          fmt::format("process {} of the unit is not a descendant of its main process "
                      "{}, and would be left behind",
                      pid, facts.main_pid));
    }
  }
  for (const char* name : {"mnt", "user"}) {
    if (is_in_own_namespace(facts.main_pid, name)) {
      return refuse(
          "its processes have a mount or user namespace of their own, which CRIU cannot move: "
          "systemctl edit the unit on both nodes so that it has no PrivateTmp=, PrivateDevices=, "
          "PrivateUsers=, ProtectSystem= and the like, and restart it");
    }
  }
  auto sockets = journal_sockets_of(*tasks);
  if (!sockets) return refuse(sockets.error().message);
  if (sockets->size() > kJournalSocketsMax) return refuse("too many sockets to the journal");
  unit.journal_sockets = std::move(*sockets);
  unit_main_ = facts.main_pid;
  std::vector<std::string>& options = settings_.criu_options;
  options.push_back("--manage-cgroups=ignore");
  if (!unit.journal_sockets.empty()) options.push_back("--ext-unix-sk");
  for (const uint64_t inode : unit.journal_sockets) {
    options.insert(options.end(), {"--external", fmt::format("unix[{}]", inode)});
  }
  return {};
}

// Says at once that another migration moves the processes. Otherwise the checks would say that a
// debugger traces them. With --independent each tree finds its own rivals.
CommandResult<void> Migrate::find_rivals(const RecordStore& store) const {
  if (command_.independent) return {};
  std::vector<ProcessIdentity> roots;
  for (const pid_t pid : wanted_pids()) {
    if (const auto root = identify(pid)) roots.push_back(*root);
  }
  Status alone = check_rivals(store, roots);
  if (!alone && alone.error().errno_value == EALREADY) {
    // Its coordinator may be dead.
    settle_mount(store, MigrationRole::kSource, settings_.mount.mountpoint, kSettlePatience);
    alone = check_rivals(store, roots);
  }
  if (alone) return {};
  return command_failure(ExitCode::kMigrationAborted, alone.error().message);
}

CommandResult<void> Migrate::find_trees() {
  const MovePlan& plan = settings_.plan;
  MoveOptions& options = move_options_;
  options.lazily = plan.restores_lazily();
  options.memory_apart = plan.moves_memory_apart();
  options.own_pid_namespace = plan.original_goes_on;
  options.moved_unit = settings_.unit.name;
  options.allowed_losses = {command_.allowed_losses.begin(), command_.allowed_losses.end()};
  options.read(settings_.criu_options);
  if (auto found = find_containers(); !found) return found;
  std::vector<pid_t> roots = wanted_pids();
  for (const auto& [root, container] : containers_) roots.push_back(root);
  if (command_.independent) return find_independent_trees(roots);
  auto selection = select_trees(roots, options.tree_options());
  if (!selection) return command_failure(ExitCode::kUsage, "--pid: " + selection.error().message);
  trees_ = std::move(selection->trees);
  findings_ = std::move(selection->findings);
  return {};
}

CommandResult<void> Migrate::find_independent_trees(const std::vector<pid_t>& roots) {
  auto selection = select_independent_trees(roots, move_options_.tree_options());
  if (!selection) return command_failure(ExitCode::kUsage, "--pid: " + selection.error().message);
  trees_ = std::move(selection->trees);
  findings_ = std::move(selection->findings);
  for (ExcludedTree& tree : selection->excluded) exclude(tree.name, std::move(tree.findings));
  return {};
}

void Migrate::exclude(const std::string& name, std::vector<Finding> findings) {
  excluded_.push_back(name);
  for (Finding& finding : findings) {
    finding.severity = Severity::kWarns;  // it stops only this tree
    findings_.push_back(std::move(finding));
  }
}

// Adds the findings of both nodes.
CommandResult<void> Migrate::check_both_sides() {
  // If CRIU cannot describe the processor, the preflight compares CPU features only.
  processor_ = describe_processor(settings_.criu).value_or("");
  CriuAnswers criu(settings_.criu);
  const NodeFacts here = gather_node_facts(criu);
  AgentClient agent(parse_endpoint(settings_.endpoint));
  return command_.independent ? check_separately(here, agent) : check_together(here, agent);
}

// Errors: ESRCH if the root has ended.
Result<TreeFacts> Migrate::gather(const ProcessTree& tree) {
  auto gathered = gather_tree_facts(tree, digests_);
  if (!gathered) return gathered;
  find_landlocked(*gathered);
  if (const auto container = containers_.find(tree.root); container != containers_.end()) {
    set_container(*gathered, container->second);
  }
  return gathered;
}

Result<PreflightAnswers> Migrate::ask_target(const PreflightQuestions& questions,
                                             AgentClient& agent) {
  json request = to_request(questions);
  request["op"] = "preflight";
  const auto answer = agent.ask(request, kPreflightTimeout);
  if (!answer) return failure(answer.error());
  return read_answers(*answer, questions);
}

void Migrate::note_abilities(const NodeFacts& here, const NodeFacts& target,
                             const TreeFacts& tree) {
  if (!target.has_feature(kLazyFeature)) abilities_.target_restores_lazily = false;
  if (!here.can_hold_in_pipes(tree.memory_bytes)) abilities_.pipes_hold_memory = false;
  memory_bytes_.push_back(memory_to_move_bytes(move_options_, here, tree));
  if (target.memory_available_bytes != 0) {
    memory_room_bytes_ = std::min(memory_room_bytes_, target.memory_available_bytes);
  }
  if (target.store_free_bytes >= 0) {
    store_room_bytes_ = std::min(store_room_bytes_, static_cast<uint64_t>(target.store_free_bytes));
  }
}

CommandResult<void> Migrate::check_together(const NodeFacts& here, AgentClient& agent) {
  std::vector<TreeFacts> facts;
  for (const ProcessTree& tree : trees_) {
    auto gathered = gather(tree);
    if (!gathered && gathered.error().errno_value == ESRCH) {
      findings_.push_back({Severity::kStops, gathered.error().message, ""});
      return {};
    }
    if (!gathered) return command_failure(ExitCode::kUsage, gathered.error().message);
    facts.push_back(std::move(*gathered));
  }
  PreflightQuestions questions = make_questions(facts, move_options_);
  questions.processor = processor_;
  const auto answers = ask_target(questions, agent);
  if (!answers) return command_failure(ExitCode::kPeerFailed, answers.error().message);
  for (const TreeFacts& tree : facts) note_abilities(here, answers->node, tree);
  auto obstacles = check_move(move_options_, here, facts, questions, *answers);
  findings_.insert(findings_.end(), obstacles.begin(), obstacles.end());
  return {};
}

// A tree that cannot move, or for which the target has no room besides the others, does not stop
// the others.
CommandResult<void> Migrate::check_separately(const NodeFacts& here, AgentClient& agent) {
  std::vector<ProcessTree> trees;
  std::vector<TreeFacts> facts;
  std::vector<PreflightQuestions> questions;
  const auto name_of = [](const ProcessTree& tree) {
    return fmt::format("{} ({})", tree.root, tree.processes.front().name);
  };
  for (ProcessTree& tree : trees_) {
    auto gathered = gather(tree);
    if (!gathered && gathered.error().errno_value == ESRCH) {
      exclude(name_of(tree), {{Severity::kStops, gathered.error().message, ""}});
      continue;
    }
    if (!gathered) return command_failure(ExitCode::kUsage, gathered.error().message);
    facts.push_back(std::move(*gathered));
    questions.push_back(make_questions({facts.back()}, move_options_));
    questions.back().processor = processor_;
    trees.push_back(std::move(tree));
  }
  std::vector<PreflightAnswers> answers;
  if (auto asked = ask_about(questions, agent, answers); !asked) return asked;
  trees_.clear();
  uint64_t needed_bytes = 0;
  for (size_t i = 0; i < trees.size(); ++i) {
    std::vector<Finding> own =
        check_move(move_options_, here, {facts[i]}, questions[i], answers[i]);
    const uint64_t bytes = memory_to_move_bytes(move_options_, here, facts[i]);
    const auto room = check_room_besides(needed_bytes, bytes, answers[i].node);
    own.insert(own.end(), room.begin(), room.end());
    if (stops(own)) {
      exclude(name_of(trees[i]), std::move(own));
      continue;
    }
    needed_bytes += bytes;
    findings_.insert(findings_.end(), own.begin(), own.end());
    note_abilities(here, answers[i].node, facts[i]);
    trees_.push_back(std::move(trees[i]));
  }
  return {};
}

// Appends the answers for each item of `questions`, with one request for all of them. Halves them
// if one request would be too long, or if the target's policy refuses some of the processes: it
// does not say which.
CommandResult<void> Migrate::ask_about(std::span<const PreflightQuestions> questions,
                                       AgentClient& agent, std::vector<PreflightAnswers>& answers) {
  if (questions.empty()) return {};
  const SharedQuestions shared({questions.begin(), questions.end()});
  const auto all = ask_target(shared.all(), agent);
  const bool must_halve = all ? !all->policy_problem.empty() : all.error().errno_value == EMSGSIZE;
  if (questions.size() > 1 && must_halve) {
    const size_t half = questions.size() / 2;
    if (auto asked = ask_about(questions.first(half), agent, answers); !asked) return asked;
    return ask_about(questions.subspan(half), agent, answers);
  }
  if (!all) return command_failure(ExitCode::kPeerFailed, all.error().message);
  for (size_t i = 0; i < questions.size(); ++i) answers.push_back(shared.answers_for(i, *all));
  return {};
}

void Migrate::limit_rounds() {
  if (!settings_.plan.is_live) return;
  const auto needed_bytes = std::max<uint64_t>(
      std::accumulate(memory_bytes_.begin(), memory_bytes_.end(), uint64_t{0}), 1);
  const auto times = [&](uint64_t room_bytes) {
    return static_cast<double>(room_bytes) / static_cast<double>(needed_bytes);
  };
  // The store keeps the rounds; the memory of the running trees is not in it.
  const double store_times = times(store_room_bytes_) + 1;
  settings_.live.room_times = std::min(times(memory_room_bytes_), store_times);
  if (has_room_for_rounds(settings_.live)) return;
  settings_.plan.is_live = false;
  const bool stops = settings_.live.on_timeout == OnTimeout::kCancel;
  findings_.push_back(
      {stops ? Severity::kStops : Severity::kWarns,
       fmt::format("the target has room for the memory, but not for copies of what is written "
                   "meanwhile ({} free): all memory {} while the processes are frozen",
                   format_size(std::min(memory_room_bytes_, store_room_bytes_)),
                   stops ? "would be sent" : "is sent"),
       "free memory there, or choose another target"});
}

// With what both nodes can do.
void Migrate::finish_plan() {
  const auto plan = plan_move(request_, abilities_);
  if (!plan) {
    findings_.push_back({Severity::kStops, plan.error().message, "migrate without --post-copy"});
    return;
  }
  settings_.plan = *plan;
  limit_rounds();
  if (!plan->may_run_before_memory()) return;
  findings_.push_back(
      {Severity::kWarns,
       "--post-copy: from the decision until all memory has arrived, the processes need both nodes "
       "and the link between them; if a node is lost, or the link for longer than --timeout, they "
       "are lost",
       "without --post-copy they run at the target only when all memory is there"});
}

void Migrate::print_findings() const {
  for (const Finding& finding : findings_) {
    const bool stops = finding.severity == Severity::kStops;
    if (command_.quiet && !stops) continue;
    if (command_.json) {
      print_to(stdout, "{}\n",
               json_text({{"event", "finding"},
                          {"time_ns", realtime_ns()},
                          {"stops", stops},
                          {"sentence", finding.sentence},
                          {"remedy", finding.remedy}}));
    } else {
      const TerminalStyle style = TerminalStyle::of(STDERR_FILENO);
      print_to(stderr, "{}: {}\n", stops ? style.bad("stops the move") : "warning",
               text_of(finding));
    }
  }
}

// Prints the memory that the processes need at the target.
void Migrate::print_needs() const {
  const uint64_t bytes = std::accumulate(memory_bytes_.begin(), memory_bytes_.end(), uint64_t{0});
  if (command_.json) {
    print_to(
        stdout, "{}\n",
        json_text({{"event", "checked"}, {"time_ns", realtime_ns()}, {"memory_bytes", bytes}}));
  } else if (command_.dry_run && !command_.quiet) {
    print_to(stdout, "the processes need {} of memory at the target\n", format_size(bytes));
  }
}

std::vector<MigrationOutcome> Migrate::migrate(const RecordStore& store) {
  Interruption interruption;
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
  // The connection of a migration to the target ends with its Migration.
  const auto move_one = [&](size_t i) {
    const auto outcome = without_exceptions([&]() -> Result<MigrationOutcome> {
      return Migration(store, settings_, moves[i], slots, interruption.flag()).run();
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
    if (refused) return;  // it has not begun
    (void)without_exceptions([&]() -> Status {
      (void)ask(settings_.mount, outcome_note(outcomes[i]));
      return {};
    });
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
    // The threads that have started do the work. Without any, this one does.
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
    print_error("ppmr " + command_.name, tree + " stays because of the findings above");
  }
  if (stops(findings_) || trees_.empty()) {
    return failed({ExitCode::kMigrationAborted,
                   command_.dry_run ? "the findings above stop the move"
                                    : "nothing was moved because of the findings above"});
  }
  ExitCode worst = excluded_.empty() ? ExitCode::kSuccess : ExitCode::kMigrationAborted;
  print_needs();
  if (command_.dry_run) {
    if (command_.json) print_to(stdout, "{}", summary_json({}, excluded_, worst));
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
    print_to(stdout, "{}",
             command_.json ? summary_json(outcomes, excluded_, worst) : summary_text(outcomes));
  }
  for (const MigrationOutcome& outcome : outcomes) {
    if (outcome.exit_code == ExitCode::kSuccess) continue;
    print_error("ppmr " + command_.name, outcome.message);
  }
  print_manual_section("ppmr " + command_.name, worst);
  return to_int(worst);
}

}  // namespace

int MigrateCommand::run() const { return Migrate(*this).run(); }

}  // namespace ppmr
