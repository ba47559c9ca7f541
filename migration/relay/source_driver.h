// Takes the steps of the protocol at the source, and carries out their actions. The coordinator,
// the hooks and the settler use this class; each may do so at any time.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "migration/protocol/source_protocol.h"
#include "migration/records/record_store.h"
#include "migration/relay/agent_client.h"

namespace ppmr {

// Returns whose record it is, by node and boot.
Home home_of(const OwnershipRecord& record);

// Threads: one at a time.
class SourceDriver {
 public:
  // From its construction on, measures the silence of the coordinator with the steady clock, so a
  // step of the node's clock changes nothing.
  SourceDriver(const RecordStore& store, std::string id);

  // Takes one step, which is durable on return. Errors: those of source_step() and of the store.
  Result<SourceStep> take(const SourceEvent& event, bool tasks_held = false);
  // Takes the step Look, carries out its actions, and goes on until nothing is left to do or an
  // action is impossible now. Returns the last record. `patience`: for each request to the target.
  // Errors: those of take().
  Result<OwnershipRecord> drive(AgentClient& agent, std::chrono::milliseconds patience);
  // Does what drive() does, but begins with `step` instead of Look. `until_notified`: returns as
  // soon as the target knows the decision.
  Result<OwnershipRecord> carry_out(SourceStep step, AgentClient& agent,
                                    std::chrono::milliseconds patience,
                                    bool until_notified = false);
  // Sets the function that kills the tasks. The coordinator has opened the tasks before the
  // decision, so it can kill them without a delay.
  void kill_with(std::function<Status()> kill) { kill_ = std::move(kill); }
  // Post-copy: how long drive() waits for the memory to move.
  void await_memory_for(std::chrono::milliseconds patience) { memory_patience_ = patience; }
  // Post-copy: sets whether the memory is still needed here, for the program that sends the memory.
  // Otherwise the driver asks the daemon, which takes up to a second.
  void know_memory_needed(bool needed) { memory_needed_ = needed; }
  // Why the last action of drive() was impossible; empty: it was not.
  const std::string& obstacle() const { return obstacle_; }
  // Whether the obstacle is that the target does not answer.
  bool target_is_silent() const { return target_is_silent_; }
  // Returns whether the coordinator lives and is not silent for longer than the record allows.
  bool coordinator_works(const OwnershipRecord& record) const;

 private:
  SourceFacts facts_of(const OwnershipRecord& record, bool tasks_held) const;
  Result<SourceEvent> perform(const OwnershipRecord& record, SourceAction action,
                              AgentClient& agent, std::chrono::milliseconds patience);

  const RecordStore& store_;
  const std::string id_;
  mutable ContactClock contact_;
  std::function<Status()> kill_;
  std::chrono::milliseconds memory_patience_{0};
  std::optional<bool> memory_needed_;
  std::string obstacle_;
  bool target_is_silent_ = false;
};

// Converts the answer of the node `name` to an event. `record`: of the source. Errors: EPROTO;
// EXDEV: the node has no record of the migration, but it is not the target either.
Result<source_event::TargetSays> target_says(const nlohmann::json& answer,
                                             const OwnershipRecord& record,
                                             const std::string& name);

// Continues what the migration has stopped: tasks, connections, containers, RDMA. Errors: EBUSY: a
// CRIU still holds a tree; its hook will let the tree continue.
Status resume_source(const RecordStore& store, const OwnershipRecord& record);
// Sends SIGKILL to all tasks. After an error, some may still be alive. Errors: EPERM without the
// right to end them.
Status kill_tasks_of(const OwnershipRecord& record);

}  // namespace ppmr
