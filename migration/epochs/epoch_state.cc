#include "migration/epochs/epoch_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/command_line/size_option.h"
#include "migration/records/source_name.h"
#include "preflight/systemd_unit.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr size_t kNameMaxBytes = 64;
constexpr std::string_view kCopySuffix = "@copy";
constexpr size_t kRunDigits = 8;  // of the ID of a run
// age_text() shows the uncertainty of the clock if it is at least this part of the age.
constexpr double kUncertaintyShown = 0.1;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '@' || c == '-';
}

struct Part {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Returns the parts of the memory file that the indexes refer to, in the order of their offsets.
// The parts do not overlap.
std::vector<Part> parts_of(const std::vector<PageIndex>& indexes) {
  std::vector<Part> parts;
  for (const PageIndex& index : indexes) {
    for (const IndexedTask& task : index.tasks) {
      for (const PageRange& range : task.ranges) {
        parts.push_back({range.offset, range.offset + range.bytes()});
      }
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& left, const Part& right) { return left.begin < right.begin; });
  std::vector<Part> merged;
  for (const Part& part : parts) {
    if (!merged.empty() && part.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, part.end);
    } else {
      merged.push_back(part);
    }
  }
  return merged;
}

}  // namespace

std::vector<SealedEpoch> kept_epochs(const EpochState& state) {
  if (state.newest.number == 0) return {};
  std::vector<SealedEpoch> kept = {state.newest};
  kept.insert(kept.end(), state.older.begin(), state.older.end());
  return kept;
}

Result<SealedEpoch> find_epoch(const EpochState& state, uint64_t number) {
  std::string known;
  for (const SealedEpoch& epoch : kept_epochs(state)) {
    if (number == 0 || epoch.number == number) return epoch;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", epoch.number);
  }
  if (known.empty()) {
    return failure(
        ENOENT, fmt::format("{} has no complete epoch: the first one has not arrived", state.name));
  }
  return failure(ENOENT, fmt::format("{} has no epoch {}; kept are {}", state.name, number, known));
}

EpochState with_newest(EpochState state, const SealedEpoch& epoch, uint64_t oldest) {
  state.older = kept_epochs(state);
  std::erase_if(state.older, [&](const SealedEpoch& earlier) {
    return earlier.number < oldest || earlier.number >= epoch.number;
  });
  state.newest = epoch;
  return state;
}

void forget_all_epochs(EpochState& state) {
  state.newest = {};
  state.older.clear();
}

bool is_protection_name(const std::string& name) {
  return !name.empty() && name.size() <= kNameMaxBytes && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

std::string epoch_checkpoint(const std::string& name, const std::string& run, uint64_t number) {
  return fmt::format("{}+{}+{}", name, run.substr(0, kRunDigits), number);
}

// No name of a tree has a "+".
bool is_epoch_checkpoint(const std::string& checkpoint, const std::string& name) {
  return checkpoint.starts_with(name + "+");
}

std::chrono::milliseconds age_of(const SealedEpoch& epoch, int64_t now_ns) {
  return std::chrono::milliseconds(std::max<int64_t>(now_ns - epoch.frozen_ns, 0) / 1'000'000);
}

std::string age_text(const SealedEpoch& epoch, int64_t now_ns) {
  const auto age = age_of(epoch, now_ns);
  std::string text = format_time(age) + " old";
  if (epoch.clock_uncertainty_ns < 0) return text + " by the clock of its source";
  const std::chrono::nanoseconds uncertainty(epoch.clock_uncertainty_ns);
  if (uncertainty < age * kUncertaintyShown) return text;
  return fmt::format("{} (+-{})", text,
                     format_time(std::chrono::ceil<std::chrono::milliseconds>(uncertainty)));
}

SealedEpoch parse_sealed_epoch(const json& packed) {
  return {.number = packed.at("number"),
          .frozen_ns = packed.at("frozen_ns"),
          .pause_ms = packed.at("pause_ms"),
          .bytes = packed.at("bytes"),
          .arrived_bytes = packed.at("arrived_bytes"),
          .memory_end = packed.value("memory_end", uint64_t{0}),
          .clock_uncertainty_ns = packed.value("clock_uncertainty_ns", int64_t{-1})};
}

json to_json(const SealedEpoch& epoch) {
  return {{"number", epoch.number},
          {"frozen_ns", epoch.frozen_ns},
          {"pause_ms", epoch.pause_ms},
          {"bytes", epoch.bytes},
          {"arrived_bytes", epoch.arrived_bytes},
          {"memory_end", epoch.memory_end},
          {"clock_uncertainty_ns", epoch.clock_uncertainty_ns}};
}

json to_json(const ProtectedTree& tree) {
  return {{"node_id", tree.node_id},
          {"boot_id", tree.boot_id},
          {"root", tree.root},
          {"root_start_time", tree.root_start_time},
          {"program", tree.program}};
}

ProtectedTree parse_protected_tree(const json& packed) {
  return {packed.at("node_id"), packed.at("boot_id"), packed.at("root"),
          packed.at("root_start_time"), packed.at("program")};
}

json to_json(const TreeManager& manager) {
  json packed = json::object();
  if (!manager.container.name.empty()) {
    packed["container"] = {{"name", manager.container.name},
                           {"bundle", manager.container.bundle},
                           {"created", manager.container.created}};
  }
  if (!manager.unit.name.empty()) {
    packed["unit"] = {{"name", manager.unit.name},
                      {"journal_sockets", manager.unit.journal_sockets},
                      {"enabled", manager.unit.enabled}};
  }
  return packed;
}

Result<TreeManager> parse_tree_manager(const json& packed) {
  if (!packed.is_object()) return failure(EPROTO, "the manager of a tree is not an object");
  TreeManager manager;
  if (const auto found = packed.find("container"); found != packed.end()) {
    ContainerRecord& container = manager.container;
    container = {found->at("name"), found->at("bundle"), found->at("created")};
    if (!is_container_name(container.name) || !container.bundle.starts_with('/') ||
        container.bundle.find('\0') != std::string::npos) {
      return failure(EPROTO, fmt::format("'{}' is not the name of a container, or its bundle "
                                         "'{}' is not an absolute path",
                                         container.name, container.bundle));
    }
  }
  if (const auto found = packed.find("unit"); found != packed.end()) {
    UnitRecord& unit = manager.unit;
    unit = {found->at("name"), found->at("journal_sockets"), found->at("enabled")};
    if (!is_service_name(unit.name)) {
      return failure(EPROTO, "'" + unit.name + "' is not the name of a unit");
    }
    if (unit.journal_sockets.size() > kJournalSocketsMax) {
      return failure(EPROTO,
                     fmt::format("{} has {} sockets to the journal, the maximum is {}", unit.name,
                                 unit.journal_sockets.size(), kJournalSocketsMax));
    }
  }
  return manager;
}

json to_json(const EpochState& state) {
  auto older = json::array();
  for (const SealedEpoch& epoch : state.older) older.push_back(to_json(epoch));
  return {{"name", state.name},
          {"peer", state.peer},
          {"mountpoint", state.mountpoint},
          {"audit_file", state.audit_file},
          {"tree", to_json(state.tree)},
          {"run", state.run},
          {"newest", to_json(state.newest)},
          {"older", std::move(older)},
          {"manager", to_json(state.manager)},
          {"criu_options", state.criu_options},
          {"restart_policy", state.restart_policy},
          {"takeover", state.takeover},
          {"completed_takeover", state.completed_takeover},
          {"first_partner", state.first_partner},
          {"rolls_back", state.rolls_back},
          {"is_copy", state.is_copy}};
}

Result<EpochState> parse_epoch_state(const json& packed) {
  try {
    EpochState state;
    state.name = packed.at("name");
    state.peer = packed.at("peer");
    state.mountpoint = packed.at("mountpoint");
    state.audit_file = packed.at("audit_file");
    state.tree = parse_protected_tree(packed.at("tree"));
    state.run = packed.at("run");
    state.newest = parse_sealed_epoch(packed.at("newest"));
    // A state of an older version has one epoch.
    for (const json& epoch : packed.value("older", json::array())) {
      state.older.push_back(parse_sealed_epoch(epoch));
    }
    // A state of an older version has no manager.
    auto manager = parse_tree_manager(packed.value("manager", json::object()));
    if (!manager) return failure(manager.error());
    state.manager = std::move(*manager);
    state.criu_options = packed.at("criu_options").get<std::vector<std::string>>();
    state.restart_policy = packed.at("restart_policy");
    state.takeover = packed.at("takeover");
    state.completed_takeover = packed.value("completed_takeover", "");
    state.first_partner = packed.value("first_partner", "");
    state.rolls_back = packed.value("rolls_back", false);
    state.is_copy = packed.value("is_copy", false);
    if (!is_protection_name(state.name)) {
      return failure(EPROTO, "'" + state.name + "' is not a name for a protected process");
    }
    if (state.is_copy && !is_copy_name(state.name)) {
      return failure(EPROTO, "a copy has the name of a protected process, '" + state.name + "'");
    }
    if (!is_migration_id(state.run)) {
      return failure(EPROTO, "'" + state.run + "' is not the ID of a run");
    }
    if (!state.takeover.empty() && !is_migration_id(state.takeover)) {
      return failure(EPROTO, "'" + state.takeover + "' is not the ID of a takeover");
    }
    if (state.tree.root <= 0)
      return failure(EPROTO, "no process has pid " + std::to_string(state.tree.root));
    return state;
  } catch (const json::exception& error) {
    return failure(EPROTO, error.what());
  }
}

SourceMay judge_source(std::optional<MigrationState> takeover) {
  if (!takeover || *takeover == MigrationState::kAborted) return SourceMay::kGoOn;
  if (*takeover == MigrationState::kRestoring || *takeover == MigrationState::kReady) {
    return SourceMay::kGoOnAfterAbort;
  }
  return SourceMay::kNotRun;
}

std::optional<MigrationState> judge_without_record(const EpochState& state, bool is_lost) {
  const bool is_completed = !state.takeover.empty() && state.completed_takeover == state.takeover;
  // The leader of the whole decides where a tree that rolls back runs.
  if (is_completed || (state.rolls_back && is_lost)) return MigrationState::kFinished;
  return std::nullopt;
}

Status check_takeover(const EpochState& state, std::optional<MigrationState> takeover,
                      uint64_t number) {
  if (!state.rolls_back && judge_source(takeover) == SourceMay::kNotRun) {
    return failure(EALREADY, fmt::format("{} was taken over already: migration {} (ppmr history)",
                                         state.name, state.takeover));
  }
  const auto found = find_epoch(state, number);
  return found ? Status{} : failure(found.error());
}

std::string copy_name(const std::string& name) { return name + std::string(kCopySuffix); }

bool is_copy_name(const std::string& name) { return name.ends_with(kCopySuffix); }

Status check_protected_name(const std::string& name) {
  if (!is_protection_name(name)) {
    return failure(EINVAL, "'" + name +
                               "' is not a name for a protected process: a name has only letters, "
                               "digits and ._@-, at most 64, and begins with no dot");
  }
  if (!is_copy_name(name)) return {};
  return failure(EINVAL, fmt::format("'{}' is the name of a copy (ppmr takeover --copy): choose "
                                     "a name that does not end with {}",
                                     name, kCopySuffix));
}

Status check_has_source(const EpochState& state) {
  if (!state.is_copy) return {};
  const std::string original = state.name.substr(0, state.name.size() - kCopySuffix.size());
  return failure(EPERM,
                 fmt::format("{0} is a copy, which runs beside its source: run ppmr takeover "
                             "{1} --copy for another copy, or ppmr takeover {1} if the "
                             "source is lost",
                             state.name, original));
}

bool is_abandoned_copy(const EpochState& state, std::optional<MigrationState> takeover) {
  return state.is_copy && judge_source(takeover) == SourceMay::kGoOn;
}

Status check_copy(const EpochState& state, uint64_t number, const std::optional<EpochState>& copy,
                  std::optional<MigrationState> copy_takeover) {
  if (Status original = check_has_source(state); !original) return original;
  if (state.rolls_back) {
    return failure(EPERM, fmt::format("{} is a node of a job, and a job is not copied node by node",
                                      state.name));
  }
  if (!state.manager.unit.name.empty()) {
    return failure(EPERM, fmt::format("{} is the unit {}: two nodes that supervise, restart and "
                                      "enable one service are no copies; protect its process with "
                                      "--pid to copy it",
                                      state.name, state.manager.unit.name));
  }
  const std::string name = copy_name(state.name);
  if (!is_protection_name(name)) {
    return failure(EINVAL, fmt::format("a copy of {} has no valid name ({}): protect it with a "
                                       "shorter --name",
                                       state.name, name));
  }
  if (const auto found = find_epoch(state, number); !found) return failure(found.error());
  if (!copy) return {};
  if (judge_source(copy_takeover) == SourceMay::kGoOnAfterAbort) {
    return failure(EBUSY, fmt::format("a copy of {} is being restored: migration {}", state.name,
                                      copy->takeover));
  }
  const bool is_over = judge_source(copy_takeover) == SourceMay::kNotRun;
  if (is_over || copy->is_copy) return {};
  return failure(EEXIST, fmt::format("{0} is the name of another process whose epoch is kept: run "
                                     "ppmr takeover {0} --discard",
                                     name));
}

EpochState copy_of(const EpochState& state, const SealedEpoch& epoch, const std::string& run) {
  EpochState copy = state;
  copy.name = copy_name(state.name);
  copy.run = run;
  copy.newest = epoch;
  copy.older.clear();
  copy.takeover.clear();
  copy.first_partner.clear();
  copy.is_copy = true;
  return copy;
}

Status check_precedence(const EpochState& state, bool is_alone, const std::string& instead_of) {
  const std::string& first = state.first_partner;
  if (first.empty()) {
    if (instead_of.empty()) return {};
    return failure(EPERM, fmt::format("no other partner takes {} over before this one: leave out "
                                      "--instead-of",
                                      state.name));
  }
  if (is_alone) {
    return failure(EPERM,
                   fmt::format("{} is also kept by {}, and only that partner takes it over without "
                               "a person: two partners that do so would run the process twice",
                               state.name, first));
  }
  if (instead_of == first) return {};
  return failure(EPERM,
                 fmt::format("{0} is also kept by {1}, which takes it over before this one: make "
                             "sure that {1} does not (it is switched off, or `ppmr takeover {0} "
                             "--discard` has run there), then add --instead-of {1}",
                             state.name, first));
}

Status check_source(const EpochState& known, std::optional<MigrationState> takeover,
                    const std::string& peer, const ProtectedTree& tree) {
  if (!is_same_source({known.peer, known.tree.node_id}, {peer, tree.node_id})) {
    return failure(EACCES, fmt::format("'{}' belongs to another source ({}): choose another name",
                                       known.name, known.peer));
  }
  const bool is_kept = known.newest.number > 0 && judge_source(takeover) != SourceMay::kNotRun;
  if (known.tree == tree || !is_kept) return {};
  return failure(
      EEXIST, fmt::format("'{}' is the name of another process ({}, pid {}), whose epoch is kept: "
                          "run ppmr takeover {} or ppmr takeover --discard {} at the partner, or "
                          "choose another name",
                          known.name, known.tree.program, known.tree.root, known.name, known.name));
}

Status check_replaceable(const EpochState& known, std::optional<MigrationState> takeover) {
  if (takeover != MigrationState::kRunning) return {};
  return failure(EBUSY, fmt::format("{} was taken over, and that process still reads its memory "
                                    "from its epochs: try again when migration {} has finished "
                                    "(ppmr history at the partner), or choose another name",
                                    known.name, known.takeover));
}

Status check_leader(const EpochState& known, std::optional<MigrationState> takeover) {
  if (!known.rolls_back) {
    return failure(EEXIST, fmt::format("'{}' is the name of a protected process: run ppmr takeover "
                                       "--discard {} at the partner",
                                       known.name, known.name));
  }
  if (judge_source(takeover) != SourceMay::kGoOnAfterAbort) return {};
  return failure(EBUSY, fmt::format("{} is being rolled back to an epoch: migration {}", known.name,
                                    known.takeover));
}

Status check_sequence(const EpochState& kept, const std::string& run, uint64_t number,
                      uint64_t memory_offset) {
  if (memory_offset == 0) return {};
  const SealedEpoch& newest = kept.newest;
  if (kept.run == run && newest.number < number && newest.memory_end == memory_offset) return {};
  return failure(
      ESTALE, fmt::format("epoch {} does not follow the epoch that the partner keeps ({})", number,
                          kept.newest.number));
}

std::vector<PageRange> stale_parts(const PageIndex& before, const std::vector<PageIndex>& kept) {
  const std::vector<Part> used = parts_of(kept);
  std::vector<PageRange> stale;
  auto next = used.begin();
  for (const Part& part : parts_of({before})) {
    uint64_t at = part.begin;
    while (at < part.end) {
      while (next != used.end() && next->end <= at) ++next;
      if (next == used.end() || next->begin >= part.end) {
        stale.push_back({0, part.end - at, at});
        break;
      }
      if (next->begin > at) stale.push_back({0, next->begin - at, at});
      at = next->end;
    }
  }
  return stale;
}

}  // namespace ppmr
