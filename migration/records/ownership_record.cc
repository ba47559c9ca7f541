#include "migration/records/ownership_record.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace ppmr {
namespace {

// The limits for records from a peer. A live move has few rounds (live_rounds.h).
constexpr size_t kRoundsMax = 1000;
constexpr size_t kPausesMax = 1000;

using nlohmann::json;

constexpr std::array<const char*, kMigrationStateCount> kStateNames = {
    "preparing", "dumping", "frozen",  "sealed",   "committed",
    "restoring", "ready",   "running", "finished", "aborted"};
constexpr std::array<const char*, 8> kPhaseNames = {"waiting", "dumping", "held",    "stopped",
                                                    "sealed",  "ready",   "running", "complete"};
constexpr const char* kMemorySuffix = ".memory";
// The format of a record; CHANGELOG.md says what has changed. A node refuses a record of a newer
// format before anything moves. A target that knows format 3 also restores pages that CRIU does not
// list, from the page index.
constexpr int kFormat = 3;
constexpr int kFormatOf01 = 1;
constexpr size_t kTreesMax = 4096;
constexpr size_t kTasksMax = 65536;

Result<TreePhase> parse_phase(const std::string& name) {
  const auto found = std::find(kPhaseNames.begin(), kPhaseNames.end(), name);
  if (found == kPhaseNames.end()) return failure(EPROTO, "unknown phase '" + name + "'");
  return static_cast<TreePhase>(found - kPhaseNames.begin());
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

std::string epoch_path(const TreeRecord& tree) {
  return std::string(kEpochsDirectory) + "/" + tree.protected_as + "/epoch-" +
         std::to_string(tree.epoch);
}

json pack(const ProcessIdentity& process) { return {process.pid, process.start_time}; }

ProcessIdentity unpack_process(const json& packed) {
  return {packed.at(0).get<pid_t>(), packed.at(1).get<uint64_t>()};
}

// Throws like unpack_tree().
Result<ContainerRecord> unpack_container(const json& packed) {
  const ContainerRecord container{packed.at("name"), packed.at("bundle"), packed.at("created")};
  const bool none = container.name.empty() && container.bundle.empty();
  if (none || (is_container_name(container.name) && container.bundle.starts_with('/') &&
               container.bundle.find('\0') == std::string::npos)) {
    return container;
  }
  return failure(EPROTO,
                 "invalid container '" + container.name + "' in '" + container.bundle + "'");
}

// Throws nlohmann::json::exception if a field is missing or has another type.
Result<TreeRecord> unpack_tree(const json& packed) {
  TreeRecord tree;
  tree.root = packed.at("root");
  tree.root_start_time = packed.at("root_start_time");
  tree.name = packed.at("name");
  tree.checkpoint = packed.at("checkpoint");
  auto container = unpack_container(packed.at("container"));
  if (!container) return failure(container.error());
  tree.container = std::move(*container);
  auto phase = parse_phase(packed.at("phase"));
  if (!phase) return failure(phase.error());
  tree.phase = *phase;
  for (const char* list : {"tasks", "stopped_before"}) {
    if (const size_t count = packed.at(list).size(); count > kTasksMax) {
      return failure(EPROTO, fmt::format("tree {}: the list '{}' has {} tasks, the maximum is {}",
                                         tree.name, list, count, kTasksMax));
    }
  }
  for (const json& task : packed.at("tasks")) tree.tasks.push_back(unpack_process(task));
  for (const json& task : packed.at("stopped_before")) {
    tree.stopped_before.push_back(unpack_process(task));
  }
  tree.waiting_at = packed.at("waiting_at").get<std::vector<uint64_t>>();
  tree.criu = unpack_process(packed.at("criu"));
  tree.supervisor = unpack_process(packed.at("supervisor"));
  // The fields with a default are missing in records of older versions.
  tree.expected_bytes = packed.value("expected_bytes", uint64_t{0});
  tree.bytes = packed.value("bytes", uint64_t{0});
  tree.dump_began_ns = packed.value("dump_began_ns", int64_t{0});
  tree.freeze_began_ns = packed.at("freeze_began_ns");
  tree.held_ns = packed.at("held_ns");
  tree.sealed_ns = packed.at("sealed_ns");
  tree.goes_on_ns = packed.value("goes_on_ns", int64_t{0});
  const json rounds = packed.value("rounds", json::array());
  if (rounds.size() > kRoundsMax) {
    return failure(EPROTO, fmt::format("tree {}: {} pre-copy rounds, the maximum is {}", tree.name,
                                       rounds.size(), kRoundsMax));
  }
  for (const json& round : rounds) tree.rounds.push_back({round.at(0), round.at(1)});
  tree.restore_began_ns = packed.value("restore_began_ns", int64_t{0});
  tree.restored_ns = packed.value("restored_ns", int64_t{0});
  tree.running_ns = packed.at("running_ns");
  tree.complete_ns = packed.at("complete_ns");
  tree.error = packed.at("error");
  tree.lost = packed.at("lost");
  // The target accepts names from a peer, but no paths.
  for (const std::string& name : {tree.checkpoint, tree.checkpoint + kMemorySuffix}) {
    if (!is_plain_name(name)) return failure(EPROTO, "invalid checkpoint name '" + name + "'");
  }
  tree.protected_as = packed.value("protected_as", "");
  tree.epoch = packed.value("epoch", uint64_t{0});
  if (!tree.protected_as.empty() && !is_plain_name(tree.protected_as)) {
    return failure(EPROTO, "invalid name of a protected process '" + tree.protected_as + "'");
  }
  return tree;
}

// Takes the record through the states of its history. Throws like unpack_tree().
Status replay_history(const json& packed, OwnershipRecord& record) {
  bool begun = false;
  for (const json& change : packed.at("history")) {
    const auto state = parse_state(change.at(0));
    const int64_t at_ns = change.at(1);
    if (!state || (!begun && *state != first_state(record.role))) {
      return failure(EPROTO, "the history of the record has the state " + change.at(0).dump());
    }
    if (!begun) {
      record.begin(at_ns);
    } else if (Status moved = record.move_to(*state, at_ns); !moved) {
      return moved;
    }
    begun = true;
  }
  if (!begun) return failure(EPROTO, "the record has no history");
  const std::string state = packed.at("state");
  if (state == to_string(record.state())) return {};
  return failure(EPROTO, "the state '" + state + "' is not the last one of the history");
}

Result<OwnershipRecord> unpack(const json& packed) {
  OwnershipRecord record;
  record.id = packed.at("id");
  if (!is_migration_id(record.id)) return failure(EPROTO, "invalid id '" + record.id + "'");
  const std::string role = packed.at("role");
  if (role != "source" && role != "target") return failure(EPROTO, "unknown role '" + role + "'");
  record.role = role == "source" ? MigrationRole::kSource : MigrationRole::kTarget;
  record.version = packed.at("version");
  record.peer = packed.at("peer");
  record.endpoint = packed.at("endpoint");
  if (!record.endpoint.is_object()) return failure(EPROTO, "'endpoint' is not a JSON object");
  record.peer_node_id = packed.value("peer_node_id", "");
  record.peer_state_directory = packed.value("peer_state_directory", "");
  record.node_id = packed.at("node_id");
  record.boot_id = packed.at("boot_id");
  record.incarnation = packed.at("incarnation");
  record.mountpoint = packed.at("mountpoint");
  record.audit_file = packed.at("audit_file");
  record.coordinator = unpack_process(packed.at("coordinator"));
  record.hold_limit_ms = packed.at("hold_limit_ms");
  auto plan = parse_plan(packed.at("plan"));
  if (!plan) return failure(plan.error());
  record.plan = *plan;
  record.criu_options = packed.at("criu_options").get<std::vector<std::string>>();
  record.restart_policy = packed.at("restart_policy");
  if (!record.restart_policy.is_object()) {
    return failure(EPROTO, "'restart_policy' is not a JSON object");
  }
  if (const auto unit = packed.find("unit"); unit != packed.end()) {
    record.unit.name = unit->at("name");
    record.unit.journal_sockets = unit->at("journal_sockets").get<std::vector<uint64_t>>();
    record.unit.enabled = unit->at("enabled");
    if (record.unit.journal_sockets.size() > kJournalSocketsMax) {
      return failure(EPROTO, fmt::format("{} sockets to the journal, the maximum is {}",
                                         record.unit.journal_sockets.size(), kJournalSocketsMax));
    }
  }
  const json pauses = packed.value("pauses", json::array());
  if (pauses.size() > kPausesMax) {
    return failure(EPROTO, fmt::format("{} pauses, the maximum is {}", pauses.size(), kPausesMax));
  }
  for (const json& pause : pauses) record.pauses.push_back({pause.at(0), pause.at(1)});
  if (packed.at("trees").empty() || packed.at("trees").size() > kTreesMax) {
    return failure(EPROTO, fmt::format("{} trees: a record has 1 to {}", packed.at("trees").size(),
                                       kTreesMax));
  }
  for (const json& tree : packed.at("trees")) {
    auto unpacked = unpack_tree(tree);
    if (!unpacked) return failure(unpacked.error());
    record.trees.push_back(std::move(*unpacked));
  }
  const bool has_container =
      std::any_of(record.trees.begin(), record.trees.end(),
                  [](const TreeRecord& tree) { return !tree.container.name.empty(); });
  if (Status possible = check_plan(record.plan, has_container); !possible) {
    return failure(possible.error());
  }
  record.tasks_stopped = packed.at("tasks_stopped");
  record.tasks_resumed = packed.at("tasks_resumed");
  record.peer_notified = packed.at("peer_notified");
  record.confirmations = packed.at("confirmations");
  record.error = packed.at("error");
  if (Status replayed = replay_history(packed, record); !replayed) {
    return failure(replayed.error());
  }
  return record;
}

// Converts a record of format 1 (version 0.1) to the present format. In format 1, the target had a
// state `owned` between `ready` and `running`, in which it could no longer abort. In `owned` as in
// `ready`, a migration is in doubt until the source sends `run`, so `owned` becomes `ready`. Throws
// like unpack_tree().
json upgrade(json packed) {
  json history = json::array();
  for (const json& change : packed.at("history")) {
    if (change.at(0) != "owned") history.push_back(change);
  }
  packed["history"] = std::move(history);
  if (packed.at("state") == "owned") packed["state"] = "ready";
  packed["node_id"] = packed["incarnation"] = "";
  packed["confirmations"] = 0;
  packed["tasks_resumed"] = packed.at("peer_notified");
  for (json& tree : packed.at("trees")) {
    tree["lost"] = "";
    tree["stopped_before"] = json::array();
  }
  return packed;
}

}  // namespace

const char* to_string(MigrationRole role) {
  return role == MigrationRole::kSource ? "source" : "target";
}
const char* to_string(MigrationState state) { return kStateNames[static_cast<size_t>(state)]; }
const char* to_string(TreePhase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }
std::string to_string(MigrationRole role, MigrationState state) {
  return std::string(to_string(role)) + ":" + to_string(state);
}

std::optional<MigrationState> parse_state(const std::string& name) {
  const auto found = std::find(kStateNames.begin(), kStateNames.end(), name);
  if (found == kStateNames.end()) return std::nullopt;
  return static_cast<MigrationState>(found - kStateNames.begin());
}

MigrationState first_state(MigrationRole role) {
  return role == MigrationRole::kSource ? MigrationState::kPreparing : MigrationState::kRestoring;
}

bool may_change(MigrationRole role, MigrationState from, MigrationState to) {
  using enum MigrationState;
  if (role == MigrationRole::kSource) {
    switch (from) {
      case kPreparing:
        return to == kDumping || to == kAborted;
      case kDumping:
        return to == kFrozen || to == kAborted;
      case kFrozen:
        return to == kSealed || to == kAborted;
      case kSealed:
        return to == kCommitted || to == kAborted;
      case kCommitted:
        return to == kFinished;
      default:
        return false;
    }
  }
  switch (from) {
    case kRestoring:
      return to == kReady || to == kAborted;
    case kReady:
      return to == kRunning || to == kAborted;
    case kRunning:
      return to == kFinished;
    default:
      return false;
  }
}

bool is_over(MigrationState state) {
  return state == MigrationState::kFinished || state == MigrationState::kAborted;
}

void OwnershipRecord::begin(int64_t at_ns) { history_ = {{first_state(role), at_ns}}; }

Status OwnershipRecord::move_to(MigrationState to) { return move_to(to, realtime_ns()); }

Status OwnershipRecord::move_to(MigrationState to, int64_t at_ns) {
  if (!may_change(role, state(), to)) {
    return failure(EPERM, std::string("migration ") + id + " is " + to_string(state()) +
                              " at the " + to_string(role) + " and cannot become " + to_string(to) +
                              (error.empty() ? "" : " (" + error + ")"));
  }
  if (plan.is_rehearsal && (to == MigrationState::kCommitted || to == MigrationState::kRunning)) {
    return failure(EPERM, "migration " + id + " is a rehearsal: its copy never runs");
  }
  history_.push_back({to, at_ns});
  return {};
}

const char* OwnershipRecord::owner() const {
  using enum MigrationState;
  if (plan.is_rehearsal) return "source";
  if (plan.original_goes_on) return "both: the copy has a pid namespace of its own";
  if (state() == kAborted) return "source";
  if (role == MigrationRole::kSource) {
    return state() == kCommitted || state() == kFinished ? "target" : "source";
  }
  if (state() == kReady) return "undecided: see the record of the source";
  return state() == kRestoring ? "source" : "target";
}

bool OwnershipRecord::all_trees(TreePhase phase) const {
  return std::all_of(trees.begin(), trees.end(),
                     [&](const TreeRecord& tree) { return tree.phase >= phase; });
}

const std::string& OwnershipRecord::first_error() const {
  if (!error.empty()) return error;
  for (const TreeRecord& tree : trees) {
    if (!tree.lost.empty()) return tree.lost;
    if (!tree.error.empty()) return tree.error;
  }
  return error;
}

bool OwnershipRecord::is_settled() const {
  if (role == MigrationRole::kTarget) return is_over(state());
  return state() == MigrationState::kFinished ||
         (state() == MigrationState::kAborted && peer_notified && tasks_resumed);
}

bool OwnershipRecord::has_losses() const {
  return std::any_of(trees.begin(), trees.end(),
                     [](const TreeRecord& tree) { return !tree.lost.empty(); });
}

std::string OwnershipRecord::losses() const {
  std::string text;
  for (const TreeRecord& tree : trees) {
    if (tree.lost.empty()) continue;
    if (!text.empty()) text += "; ";
    text += "process " + std::to_string(tree.root) + " (" + tree.name + ") is lost: " + tree.lost;
  }
  return text;
}

std::vector<ProcessIdentity> tasks_to_resume(const TreeRecord& tree) {
  std::vector<ProcessIdentity> tasks = tree.tasks;
  std::erase_if(tasks, [&](const ProcessIdentity& task) {
    return std::find(tree.stopped_before.begin(), tree.stopped_before.end(), task) !=
           tree.stopped_before.end();
  });
  return tasks;
}

std::string memory_checkpoint(const MovePlan& plan, const TreeRecord& tree) {
  return plan.moves_memory_apart() ? tree.checkpoint + kMemorySuffix : "";
}

std::string images_path(const OwnershipRecord& record, const TreeRecord& tree) {
  if (!tree.protected_as.empty()) return epoch_path(tree) + "/images";
  return record.mountpoint + "/" + tree.checkpoint;
}

std::string memory_path(const OwnershipRecord& record, const TreeRecord& tree) {
  if (!tree.protected_as.empty()) return epoch_path(tree) + "/memory";
  const std::string name = memory_checkpoint(record.plan, tree);
  return name.empty() ? "" : record.mountpoint + "/" + name;
}

void to_json(json& packed, const TreeRecord& tree) {
  auto tasks = json::array();
  for (const ProcessIdentity& task : tree.tasks) tasks.push_back(pack(task));
  auto stopped = json::array();
  for (const ProcessIdentity& task : tree.stopped_before) stopped.push_back(pack(task));
  auto rounds = json::array();
  for (const RoundRecord& round : tree.rounds) {
    rounds.push_back(json::array({round.ended_ns, round.bytes}));
  }
  packed = {{"root", tree.root},
            {"root_start_time", tree.root_start_time},
            {"name", tree.name},
            {"checkpoint", tree.checkpoint},
            {"protected_as", tree.protected_as},
            {"epoch", tree.epoch},
            {"container",
             {{"name", tree.container.name},
              {"bundle", tree.container.bundle},
              {"created", tree.container.created}}},
            {"phase", to_string(tree.phase)},
            {"tasks", tasks},
            {"stopped_before", stopped},
            {"waiting_at", tree.waiting_at},
            {"criu", pack(tree.criu)},
            {"supervisor", pack(tree.supervisor)},
            {"expected_bytes", tree.expected_bytes},
            {"bytes", tree.bytes},
            {"dump_began_ns", tree.dump_began_ns},
            {"freeze_began_ns", tree.freeze_began_ns},
            {"held_ns", tree.held_ns},
            {"sealed_ns", tree.sealed_ns},
            {"goes_on_ns", tree.goes_on_ns},
            {"rounds", rounds},
            {"restore_began_ns", tree.restore_began_ns},
            {"restored_ns", tree.restored_ns},
            {"running_ns", tree.running_ns},
            {"complete_ns", tree.complete_ns},
            {"error", tree.error},
            {"lost", tree.lost}};
}

void to_json(json& packed, const OwnershipRecord& record) {
  auto history = json::array();
  for (const StateChange& change : record.history()) {
    history.push_back({to_string(change.state), change.at_ns});
  }
  packed = {{"format", kFormat},
            {"id", record.id},
            {"role", to_string(record.role)},
            {"state", to_string(record.state())},
            {"version", record.version},
            {"owner", record.owner()},
            {"peer", record.peer},
            {"endpoint", record.endpoint},
            {"node_id", record.node_id},
            {"boot_id", record.boot_id},
            {"incarnation", record.incarnation},
            {"mountpoint", record.mountpoint},
            {"audit_file", record.audit_file},
            {"coordinator", pack(record.coordinator)},
            {"hold_limit_ms", record.hold_limit_ms},
            {"plan", record.plan},
            {"criu_options", record.criu_options},
            {"restart_policy", record.restart_policy},
            {"trees", record.trees},
            {"tasks_stopped", record.tasks_stopped},
            {"tasks_resumed", record.tasks_resumed},
            {"peer_notified", record.peer_notified},
            {"confirmations", record.confirmations},
            {"error", record.error},
            {"history", history}};
  if (!record.peer_node_id.empty()) packed["peer_node_id"] = record.peer_node_id;
  if (!record.peer_state_directory.empty()) {
    packed["peer_state_directory"] = record.peer_state_directory;
  }
  // The record of a unit's rehearsal has the sockets of the unit, but not its name.
  if (!record.unit.name.empty() || !record.unit.journal_sockets.empty()) {
    packed["unit"] = {{"name", record.unit.name},
                      {"journal_sockets", record.unit.journal_sockets},
                      {"enabled", record.unit.enabled}};
  }
  if (record.pauses.empty()) return;
  auto pauses = json::array();
  for (const PauseRecord& pause : record.pauses) {
    pauses.push_back(json::array({pause.began_ns, pause.ended_ns}));
  }
  packed["pauses"] = std::move(pauses);
}

Result<OwnershipRecord> parse_record(const json& packed) {
  try {
    const int format = packed.value("format", 1);
    if (format > kFormat) {
      return failure(EOPNOTSUPP, "the record of a migration has format " + std::to_string(format) +
                                     ", but this version of ppmr knows formats up to " +
                                     std::to_string(kFormat) + ": update ppmr on this node");
    }
    auto record = unpack(format == kFormatOf01 ? upgrade(packed) : packed);
    if (!record) {
      return failure(EPROTO, "cannot parse the record of a migration (update ppmr on this node): " +
                                 record.error().message);
    }
    return record;
  } catch (const json::exception& error) {
    return failure(
        EPROTO, std::string("cannot parse the record of a migration (update ppmr on this node): ") +
                    error.what());
  }
}

std::string random_migration_id() {
  std::array<unsigned char, 16> bytes{};
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = ::getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (count > 0) filled += static_cast<size_t>(count);
  }
  std::string id;
  for (const unsigned char byte : bytes) {
    id += "0123456789abcdef"[byte >> 4];
    id += "0123456789abcdef"[byte & 15];
  }
  return id;
}

bool is_migration_id(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace ppmr
