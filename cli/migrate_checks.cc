// The checks of `ppmr migrate` on both nodes before anything moves, and the plan that results:
// which trees stay, and what both nodes are able to do.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/json_message.h"
#include "cli/migrate_steps.h"
#include "daemon/command_line/size_option.h"
#include "preflight/shared_questions.h"
#include "processes/memory/write_tracker.h"
#include "restart_loader/criu/cpu_check.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPreflightTimeout{60'000};

}  // namespace

void Migrate::exclude(const std::string& name, std::vector<Finding> findings) {
  excluded_.push_back(name);
  for (Finding& finding : findings) {
    finding.severity = Severity::kWarns;  // it stops only this tree
    // The command may have several trees, so the finding must name the tree that it stops.
    if (finding.sentence.find(name) == std::string::npos) {
      finding.sentence = fmt::format("{}: {}", name, finding.sentence);
    }
    findings_.push_back(std::move(finding));
  }
}

// Checks this node and the target. Adds a finding for each reason against the move.
CommandResult<void> Migrate::check_both_sides() {
  // If CRIU cannot describe the processor, the preflight compares CPU features only.
  processor_ = describe_processor(settings_.criu).value_or("");
  CriuAnswers criu(settings_.criu);
  const NodeFacts here = gather_node_facts(criu);
  AgentClient agent(parse_endpoint(settings_.endpoint));
  auto checked = command_.independent ? check_separately(here, agent) : check_together(here, agent);
  target_name_ = agent.node_name();
  return checked;
}

// Errors: ESRCH if the root has ended.
Result<TreeFacts> Migrate::gather(const ProcessTree& tree) {
  auto gathered = gather_tree_facts(tree, digests_);
  if (!gathered) return gathered;
  find_restrictions(*gathered);
  if (const auto container = containers_.find(tree.root); container != containers_.end()) {
    set_container(*gathered, container->second);
  }
  return gathered;
}

Result<PreflightAnswers> Migrate::ask_target(const PreflightQuestions& questions,
                                             AgentClient& agent) {
  const auto answer = agent.ask(to_request(make_request(questions)), kPreflightTimeout);
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

// Checks each tree alone. Excludes a tree that cannot move, and a tree for which the target has no
// room besides the trees before it. The other trees move.
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

// Appends the target's answers for each item of `questions`, with one request for all items. If
// that request would be too long, asks about each half of the items separately. Does the same if
// the target's policy refuses some of the processes, because the target does not say which.
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

// Plans to send all memory at once, and adds a finding that says `why`. The finding stops the move
// with --on-timeout cancel: its user prefers no move to a long downtime.
void Migrate::move_without_rounds(const std::string& why, const std::string& remedy) {
  settings_.plan.is_live = false;
  const OnTimeout on_timeout = settings_.live.on_timeout;
  const bool follows = settings_.plan.may_run_before_memory() || on_timeout == OnTimeout::kPostCopy;
  const bool stops = !follows && on_timeout == OnTimeout::kCancel;
  const char* const then = follows ? "is sent when the processes run there (post-copy)"
                           : stops ? "would be sent while the processes are frozen"
                                   : "is sent while the processes are frozen";
  findings_.push_back({stops ? Severity::kStops : Severity::kWarns,
                       fmt::format("{}: all memory {}", why, then), remedy});
}

void Migrate::limit_rounds() {
  if (!settings_.plan.is_live) return;
  // Checks the kernel here, before the first tree moves, and not again for each tree.
  if (const Status tracks = WriteTracker::check_kernel(); !tracks) {
    return move_without_rounds(
        tracks.error().message,
        "move without --on-timeout cancel, or from a node whose kernel tracks "
        "writes (`ppmr doctor` says which does)");
  }
  const auto needed_bytes = std::max<uint64_t>(
      std::accumulate(memory_bytes_.begin(), memory_bytes_.end(), uint64_t{0}), 1);
  const auto times = [&](uint64_t room_bytes) {
    return static_cast<double>(room_bytes) / static_cast<double>(needed_bytes);
  };
  // `room_times` includes the memory of the running trees. The image store holds only the rounds,
  // so its room counts one memory more.
  const double store_times = times(store_room_bytes_) + 1;
  settings_.live.room_times = std::min(times(memory_room_bytes_), store_times);
  if (has_room_for_rounds(settings_.live)) return;
  move_without_rounds(
      fmt::format("the target has room for the memory, but not for copies of what is written "
                  "meanwhile ({} free)",
                  format_size(std::min(memory_room_bytes_, store_room_bytes_))),
      "free memory there, or choose another target");
}

// Returns the settings of the move that begins with --on-timeout post-copy if the first move cannot
// keep its promise.
MigrationSettings Migrate::as_post_copy() const {
  MigrationSettings settings = settings_;
  settings.plan.may_run = MayRun::kDecided;
  settings.live.on_timeout = OnTimeout::kFreeze;
  return settings;
}

void Migrate::warn_of_post_copy(const char* option) {
  findings_.push_back(
      {Severity::kWarns,
       fmt::format("{}: from the decision until all memory has arrived, the processes need both "
                   "nodes and the link between them; if a node is lost, or the link for longer "
                   "than --timeout, they are lost",
                   option),
       fmt::format("without {} they run at the target only when all memory is there", option)});
}

// Completes the plan, because the abilities of both nodes are known now.
void Migrate::finish_plan() {
  const auto plan = plan_move(request_, abilities_);
  if (!plan) {
    findings_.push_back({Severity::kStops, plan.error().message, "migrate without --post-copy"});
    return;
  }
  settings_.plan = *plan;
  limit_rounds();
  if (plan->may_run_before_memory()) return warn_of_post_copy("--post-copy");
  if (settings_.live.on_timeout != OnTimeout::kPostCopy) return;
  if (!plan->moves_memory_apart()) {
    findings_.push_back({Severity::kStops,
                         "--on-timeout post-copy is not possible: the memory cannot be moved apart "
                         "from CRIU's images (see the warnings)",
                         "migrate without --on-timeout post-copy"});
    return;
  }
  warn_of_post_copy("--on-timeout post-copy");
  if (!settings_.plan.is_live) settings_ = as_post_copy();
}

}  // namespace ppmr
