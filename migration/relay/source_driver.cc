#include "migration/relay/source_driver.h"

#include <signal.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "daemon/control/control_client.h"
#include "migration/records/target_name.h"
#include "migration/relay/agent_requests.h"
#include "migration/relay/connections_of_tree.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/durable_step.h"
#include "migration/relay/moved_memory.h"
#include "migration/relay/unit_fate.h"
#include "preflight/rdma_release/rdma_release.h"
#include "processes/frozen_group.h"
#include "processes/frozen_tasks.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kCriuPatience{5000};
constexpr milliseconds kResumePatience{2000};
constexpr milliseconds kMemoryInterval{100};
// A record needs few rounds; a disagreement of both nodes must not become a loop.
constexpr int kDriveRoundsMax = 1000;

// Checks that this process has the right to end the tasks: otherwise both nodes could run them. A
// daemon whose unit leaves out CAP_KILL cannot end processes of other users.
Status may_signal(const std::vector<ProcessIdentity>& tasks) {
  for (const ProcessIdentity& task : tasks) {
    if (task.pid == 0 || !is_alive(task) || ::kill(task.pid, 0) == 0 || errno != EPERM) continue;
    return failure(EPERM, "end process " + std::to_string(task.pid) +
                              " here: not permitted; run `ppmr migrate --recover` as root");
  }
  return {};
}

}  // namespace

Home home_of(const OwnershipRecord& record) {
  if (!record.node_id.empty() && record.node_id != read_node_id()) return Home::kOtherNode;
  return record.boot_id == read_boot_id() ? Home::kThisBoot : Home::kEarlierBoot;
}

SourceDriver::SourceDriver(const RecordStore& store, std::string id)
    : store_(store), id_(std::move(id)), contact_(store, id_, MigrationRole::kSource) {}

bool SourceDriver::coordinator_works(const OwnershipRecord& record) const {
  if (record.coordinator == identify_self()) return true;
  return is_alive(record.coordinator) &&
         contact_.silent_for() <= milliseconds(record.hold_limit_ms);
}

SourceFacts SourceDriver::facts_of(const OwnershipRecord& record, bool tasks_held) const {
  SourceFacts facts;
  facts.now_ns = realtime_ns();
  facts.home = home_of(record);
  facts.coordinator_works = facts.home == Home::kThisBoot && coordinator_works(record);
  facts.tasks_held = tasks_held;
  facts.memory_needed = memory_needed_.value_or(false);
  // Only the step of a committed record uses memory_needed.
  if (record.state() == MigrationState::kCommitted && facts.home == Home::kThisBoot &&
      !memory_needed_) {
    for (const TreeRecord& tree : record.trees) {
      facts.memory_needed = facts.memory_needed || needs_frozen_pages(record, tree);
    }
  }
  return facts;
}

Result<SourceStep> SourceDriver::take(const SourceEvent& event, bool tasks_held) {
  return take_durable_step<SourceStep>(
      store_, id_, MigrationRole::kSource, [&](const OwnershipRecord& record) {
        return source_step(record, facts_of(record, tasks_held), event);
      });
}

Result<OwnershipRecord> SourceDriver::drive(AgentClient& agent, milliseconds patience) {
  auto step = take(source_event::Look{});
  if (!step) return failure(step.error());
  return carry_out(std::move(*step), agent, patience);
}

Result<OwnershipRecord> SourceDriver::carry_out(SourceStep step, AgentClient& agent,
                                                milliseconds patience, bool until_notified) {
  obstacle_.clear();
  target_is_silent_ = false;
  const auto memory_deadline = std::chrono::steady_clock::now() + memory_patience_;
  for (int round = 0; !step.actions.empty() && round < kDriveRoundsMax; ++round) {
    if (until_notified && step.record.peer_notified) break;
    std::vector<SourceEvent> events;
    for (const SourceAction action : step.actions) {
      if (action == SourceAction::kAwaitMemory &&
          std::chrono::steady_clock::now() >= memory_deadline) {
        obstacle_ =
            "the target does not have all memory yet, and still needs the frozen pages here";
        break;
      }
      auto event = perform(step.record, action, agent, patience);
      if (event) {
        events.push_back(std::move(*event));
        continue;
      }
      obstacle_ = event.error().message;
      // The target may receive an abort before everything here goes on. But the target may run the
      // trees only after the tasks here were killed.
      if (action != SourceAction::kResumeTasks) break;
    }
    for (const SourceEvent& event : events) {
      auto next = take(event);
      if (!next) return failure(next.error());
      step = std::move(*next);
    }
    if (!obstacle_.empty()) break;
  }
  return step.record;
}

Result<SourceEvent> SourceDriver::perform(const OwnershipRecord& record, SourceAction action,
                                          AgentClient& agent, milliseconds patience) {
  const auto about = agent_request::about(id_);
  json request = to_request(agent_request::Look{about});
  switch (action) {
    case SourceAction::kKillTasks:
      if (Status killed = kill_ ? kill_() : kill_tasks_of(record); !killed) {
        return failure(killed.error());
      }
      return source_event::TasksDead{};
    case SourceAction::kResumeTasks:
      if (Status resumed = resume_source(store_, record); !resumed) return failure(resumed.error());
      return source_event::Resumed{};
    case SourceAction::kAskTarget:
      break;
    case SourceAction::kTellRun:
      request = to_request(agent_request::Decide{about, MigrationState::kRunning, ""});
      break;
    case SourceAction::kTellAborted:
      request = to_request(agent_request::Decide{about, MigrationState::kAborted, record.error});
      break;
    case SourceAction::kAwaitMemory:
      store_.note_contact(id_, MigrationRole::kSource);
      std::this_thread::sleep_for(kMemoryInterval);
      break;
  }
  const auto answer = agent.insist_on_answer(request, patience);
  target_is_silent_ = !answer;
  if (!answer) return failure(answer.error());
  auto says = target_says(*answer, record, agent.node_name());
  if (!says) return failure(says.error());
  return SourceEvent(std::move(*says));
}

Result<source_event::TargetSays> target_says(const json& answer, const OwnershipRecord& record,
                                             const std::string& name) {
  const auto by = read_fields<agent_request::Answerer>(answer);
  if (!by) {
    return failure(EPROTO, "cannot parse the target's reply (install the same ppmr on both nodes)");
  }
  const Status verdict = accepted(answer);
  if (!verdict && by->no_record.value_or(verdict.error().errno_value == ENOENT)) {
    const Status denied =
        check_denial({record.peer, record.peer_node_id, record.peer_state_directory},
                     {name, by->node_id, by->state_directory}, record.id);
    if (!denied) return failure(denied.error());
    return source_event::TargetSays{};
  }
  const auto own = answer.find("record");
  // A refusal may carry the record, too.
  if (own == answer.end()) {
    if (!verdict) return failure(verdict.error());
    return failure(EPROTO,
                   "the target's reply has no record (install the same ppmr on both nodes)");
  }
  auto parsed = parse_record(*own);
  if (!parsed) return failure(parsed.error());
  return source_event::TargetSays{view_of(*parsed)};
}

Status resume_source(const RecordStore& store, const OwnershipRecord& record) {
  if (home_of(record) != Home::kThisBoot) return {};
  std::vector<pid_t> roots;
  Status settled;
  // Thaws the control groups first: a CRIU that lost its relay cannot continue a frozen task, and
  // would not end.
  for (const TreeRecord& tree : record.trees) {
    if (Status released = release_from_groups(tree.tasks, record.id); !released) {
      settled = released;
    }
  }
  for (const TreeRecord& tree : record.trees) {
    // A CRIU whose relay has ended fails, lets the tasks go and ends by itself.
    const auto criu = FrozenTasks::open({tree.criu});
    if (!criu) return failure(criu.error());
    if (!criu->await_end(kCriuPatience)) {
      return failure(EBUSY, "CRIU still holds process " + std::to_string(tree.root));
    }
  }
  for (size_t i = 0; i < record.trees.size(); ++i) {
    const TreeRecord& tree = record.trees[i];
    const std::string work = store.work_path(record.id, MigrationRole::kSource, i);
    if (Status released = release_connections(record, tree, work); !released) settled = released;
    if (Status container = settle_container_at_source(record, tree); !container) {
      settled = container;
    }
    // Resumes tasks that do not stand still yet, too: the SIGSTOP of the hook stays pending until
    // CRIU has let them go.
    if (record.tasks_stopped) {
      const auto tasks = FrozenTasks::open(tasks_to_resume(tree));
      if (tasks) {
        tasks->resume();
      } else {
        settled = failure(tasks.error());
      }
    }
    if (check_identity({tree.root, tree.root_start_time}, record.boot_id)) {
      roots.push_back(tree.root);
    }
  }
  (void)resume_rdma(roots, kResumePatience);
  if (Status unit = settle_unit_at_source(record); !unit) settled = unit;
  return settled;
}

Status kill_tasks_of(const OwnershipRecord& record) {
  if (home_of(record) != Home::kThisBoot || record.plan.original_goes_on) return {};
  for (const TreeRecord& tree : record.trees) {
    auto tasks = FrozenTasks::open(tree.tasks);
    if (!tasks) return failure(tasks.error());
    if (Status may = may_signal(tree.tasks); !may) return may;
    tasks->kill();
  }
  return {};
}

}  // namespace ppmr
