// The requests to the migration agent of the target, one struct each (base/json_message.h): those
// of `ppmr migrate`, `ppmr doctor` and `ppmr protect`. An answer is {"ok":true} with what was asked
// for, or a refusal. Each request may be repeated. The agent checks what a request holds.
//
// Version 0.2.0 knows these names and types, and the two nodes may have different versions. So a
// name or a type never changes, and a new field may lack.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_message.h"
#include "migration/epochs/epoch_state.h"
#include "migration/records/ownership_record.h"
#include "preflight/preflight.h"
#include "processes/process_identity.h"

namespace ppmr {
namespace json_message {

template <>
struct Value<MigrationState> {
  static nlohmann::json encode(MigrationState state) { return to_string(state); }
  static void decode(const nlohmann::json& json, MigrationState& state) {
    const auto parsed = parse_state(json.get<std::string>());
    if (!parsed) throw std::invalid_argument("it is not a state of a migration");
    state = *parsed;
  }
};

// A request has these parts of the record of a protected tree in the same JSON as the record.
template <>
struct Value<ProtectedTree> {
  static nlohmann::json encode(const ProtectedTree& tree) { return to_json(tree); }
  static void decode(const nlohmann::json& json, ProtectedTree& tree) {
    tree = parse_protected_tree(json);
  }
};

template <>
struct Value<SealedEpoch> {
  static nlohmann::json encode(const SealedEpoch& epoch) { return to_json(epoch); }
  static void decode(const nlohmann::json& json, SealedEpoch& epoch) {
    epoch = parse_sealed_epoch(json);
  }
};

template <>
struct Value<TreeManager> {
  static nlohmann::json encode(const TreeManager& manager) { return to_json(manager); }
  static void decode(const nlohmann::json& json, TreeManager& manager) {
    auto parsed = parse_tree_manager(json);
    if (!parsed) throw std::invalid_argument(parsed.error().message);
    manager = std::move(*parsed);
  }
};

}  // namespace json_message

namespace agent_request {

// The time of the agent's node.
struct Clock {
  static constexpr const char* kName = "clock";
  template <typename F>
  void fields(F&&) {}
};

// Writes the target's record of a migration, and starts the supervisors.
struct Prepare {
  static constexpr const char* kName = "prepare";
  nlohmann::json record;  // of the source, see parse_record()
  template <typename F>
  void fields(F&& field) {
    field("record", record);
  }
};

// What an answer says about the agent that sends it. A target has a record of the migration from
// `prepare` on, so an agent without one may be on another node: see check_denial().
struct Answerer {
  // Whether the agent refuses because it has no record. Absent: version 0.2.0, which has the errno
  // ENOENT then.
  std::optional<bool> no_record;
  std::string node_id;
  std::string state_directory;
  template <typename F>
  void fields(F&& field) {
    field.may_lack("no_record", no_record), field.may_lack("node_id", node_id);
    field.may_lack("state_directory", state_directory);
  }
};

struct OfMigration {
  std::string id;
  std::string node_id;  // of the source, see is_same_source()
  template <typename F>
  void fields(F&& field) {
    field("id", id), field.may_lack("node_id", node_id);
  }
};

// Returns what each request of this node about a migration has.
inline OfMigration about(const std::string& id) { return {id, read_node_id()}; }

// The target's record, as soon as it is newer than `version`, or after `timeout`.
struct Look : OfMigration {
  static constexpr const char* kName = "look";
  uint64_t version = 0;
  std::chrono::milliseconds timeout{0};  // the agent limits it
  bool paused = false;                   // `ppmr migrate --pause`
  template <typename F>
  void fields(F&& field) {
    OfMigration::fields(field);
    field.may_lack("version", version), field.may_lack("timeout_ms", timeout);
    field.may_lack("paused", paused);
  }
};

// Confirms the vote. Refused unless the target is ready, can still restore, and can write a record.
struct Vote : OfMigration {
  static constexpr const char* kName = "vote";
};

struct Decide : OfMigration {
  static constexpr const char* kName = "decide";
  MigrationState state = MigrationState::kAborted;  // this or kRunning
  std::string error;                                // why it was aborted
  template <typename F>
  void fields(F&& field) {
    OfMigration::fields(field);
    field("state", state), field.may_lack("error", error);
  }
};

// What each request of `ppmr protect` has. An answer with "replaced" means that the tree runs at
// the agent's node, and that the source must end its copy.
struct OfProtection {
  std::string name;
  ProtectedTree tree;
  std::string run;
  std::string first_partner;       // see EpochState
  std::optional<bool> rolls_back;  // absent: as the agent knows it
  template <typename F>
  void fields(F&& field) {
    field("name", name), field("tree", tree), field("run", run);
    field.may_lack("first_partner", first_partner), field.may_lack("rolls_back", rolls_back);
  }
};

// Asks whether this source may use the name. The source sends this before the first epoch of a run.
struct EpochOpen : OfProtection {
  static constexpr const char* kName = "epoch-open";
  std::vector<std::string> criu_options;
  TreeManager manager;
  template <typename F>
  void fields(F&& field) {
    OfProtection::fields(field);
    field("criu_options", criu_options), field.may_lack("manager", manager);
  }
};

// Asks whether the source may still run the tree. The source sends this while it sends no epoch.
struct EpochContact : OfProtection {
  static constexpr const char* kName = "epoch-contact";
};

// When both checkpoints of an epoch are sealed: keeps the epoch, and removes the checkpoints.
struct EpochSeal : OfProtection {
  static constexpr const char* kName = "epoch-seal";
  SealedEpoch epoch;
  uint64_t oldest = 0;  // the epochs before it are forgotten
  std::string checkpoint;
  std::string memory;          // the checkpoint with the memory,
  uint64_t memory_offset = 0;  // which belongs there in the memory file of the run
  std::vector<std::string> criu_options;
  TreeManager manager;
  template <typename F>
  void fields(F&& field) {
    OfProtection::fields(field);
    field("epoch", epoch), field("oldest", oldest), field("checkpoint", checkpoint);
    field("memory", memory), field("memory_offset", memory_offset);
    field("criu_options", criu_options), field.may_lack("manager", manager);
  }
};

// When the tree has ended by itself: forgets its epochs.
struct EpochClose : OfProtection {
  static constexpr const char* kName = "epoch-close";
};

using AnyOfProtection = std::variant<EpochOpen, EpochContact, EpochSeal, EpochClose>;
using Any = std::variant<Clock, PreflightRequest, Prepare, Look, Vote, Decide, EpochOpen,
                         EpochContact, EpochSeal, EpochClose>;

}  // namespace agent_request
}  // namespace ppmr
