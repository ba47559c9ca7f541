// What a partner knows about the epochs of one protected tree, and what it decides from that. Pure.
//
//   no epoch --> epoch sealed --> the next one sealed ...
//                     |  takeover begins                  its source asks: the takeover is aborted
//                     v
//                the tree is restored and held here
//                     |  takeover decided                 its source asks: it must end its copy
//                     v
//                the tree runs here
//
// Only one of the two may run the tree. Before the decision it is the source, after it the partner.
// The decision is made under the lock of the tree's directory (epoch_store.h), and so is every
// answer to the source. So a source that gets an answer that it may go on has not been replaced.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "migration/records/ownership_record.h"
#include "processes/memory/page_index.h"

namespace ppmr {

// The tree at its source. A new process with the same name is another tree.
struct ProtectedTree {
  std::string node_id;  // of the source
  std::string boot_id;  // of the source: with root and start time, it names one process for ever
  pid_t root = 0;
  uint64_t root_start_time = 0;
  std::string program;  // name of the root's program, for messages
  bool operator==(const ProtectedTree&) const = default;
};

// The container or the unit to which the tree belongs, at its source and after a takeover. If both
// names are empty, it belongs to none.
struct TreeManager {
  ContainerRecord container;
  UnitRecord unit;
};

struct SealedEpoch {
  uint64_t number = 0;  // counts from 1; 0: there is none yet
  // CLOCK_REALTIME when the tree stood still: at the source on its own clock, at the partner on the
  // partner's.
  int64_t frozen_ns = 0;
  int64_t pause_ms = 0;
  uint64_t bytes = 0;          // memory of the tree
  uint64_t arrived_bytes = 0;  // what this epoch has sent
  uint64_t memory_end = 0;     // where its pages end in the memory file of its run
  // At the partner: by how much frozen_ns may be wrong. -1: not known, it is on the source's clock.
  int64_t clock_uncertainty_ns = -1;
};

// How old an epoch is, 0 if its clock is ahead. "38 s old", with the uncertainty if that matters.
std::chrono::milliseconds age_of(const SealedEpoch& epoch, int64_t now_ns);
std::string age_text(const SealedEpoch& epoch, int64_t now_ns);

struct EpochState {
  std::string name;        // see is_protection_name()
  std::string peer;        // the identity of the source, as the target's daemon has verified it
  std::string mountpoint;  // of the target's mount through which the epochs arrive
  std::string audit_file;  // of its daemon; empty: syslog only
  ProtectedTree tree;
  // Epochs of one run of `ppmr protect` share a memory file. A 32-digit ID.
  std::string run;
  SealedEpoch newest;
  std::vector<SealedEpoch> older;  // those that are kept as well, the newest of them first
  TreeManager manager;             // in the newest epoch
  std::vector<std::string> criu_options;
  nlohmann::json restart_policy = nlohmann::json::object();
  std::string takeover;  // ID of the migration that takes the tree over; empty: none
  // Another partner that keeps epochs of this tree, and that takes it over before this one, by the
  // name that the source has for it; empty: there is none.
  std::string first_partner;
  // A part of a whole that is rolled back together (a job node). Who leads the whole decides where
  // and from which epoch the tree runs; so its source may always go on, and a takeover ends no
  // epochs.
  bool rolls_back = false;
  // A copy of another state's epoch, which runs beside its source (copy_of()). It has no source.
  bool is_copy = false;
};

// Returns the epochs that are kept, the newest first.
std::vector<SealedEpoch> kept_epochs(const EpochState& state);
// `number`: 0 means the newest. Errors: ENOENT; the message names those that are kept.
Result<SealedEpoch> find_epoch(const EpochState& state, uint64_t number);
// The state once `epoch` is sealed: those before `oldest` are not kept any more, nor is an earlier
// one of the same number.
EpochState with_newest(EpochState state, const SealedEpoch& epoch, uint64_t oldest);
// Another tree, or none.
void forget_all_epochs(EpochState& state);

// A name is part of paths: letters, digits and "._@-", at most 64, no dot first.
bool is_protection_name(const std::string& name);

// The name of the checkpoint with the description of an epoch. Its memory has the suffix ".memory".
std::string epoch_checkpoint(const std::string& name, const std::string& run, uint64_t number);
// Whether a checkpoint is of an epoch of the tree with this name.
bool is_epoch_checkpoint(const std::string& checkpoint, const std::string& name);

nlohmann::json to_json(const SealedEpoch& epoch);
nlohmann::json to_json(const EpochState& state);
// Errors: EPROTO; the message names the fault.
Result<EpochState> parse_epoch_state(const nlohmann::json& json);
// Throws nlohmann::json::exception if a field is missing or has another type.
SealedEpoch parse_sealed_epoch(const nlohmann::json& json);
nlohmann::json to_json(const ProtectedTree& tree);
// Throws nlohmann::json::exception if a field is missing or has another type.
ProtectedTree parse_protected_tree(const nlohmann::json& json);

// What the partner answers to a source that is alive and asks.
enum class SourceMay {
  kGoOn,
  kGoOnAfterAbort,  // a takeover has begun and is not decided: it is aborted first
  kNotRun,          // the tree runs at the partner
};
// `takeover`: state of the migration that takes the tree over; nullopt: there is none. Not for a
// tree that rolls back.
SourceMay judge_source(std::optional<MigrationState> takeover);

// `number`: of the epoch from which the tree goes on; 0: the newest. Errors: ENOENT: it is not
// kept; EALREADY: the tree was taken over.
Status check_takeover(const EpochState& state, std::optional<MigrationState> takeover,
                      uint64_t number = 0);

// A copy of a tree runs beside it: its epoch has a name of its own, so that nothing that becomes of
// the copy is an answer to the source of the tree.
std::string copy_name(const std::string& name);
bool is_copy_name(const std::string& name);
// Whether a source may protect a tree under this name. Errors: EINVAL: no name, or that of a copy.
Status check_protected_name(const std::string& name);
// Whether a takeover may end the source of the tree. Errors: EPERM: it is a copy.
Status check_has_source(const EpochState& state);
// Whether nobody needs what is kept of a copy. `takeover`: of its migration. Who makes a copy holds
// the lock until the migration has begun, so ask under the lock.
bool is_abandoned_copy(const EpochState& state, std::optional<MigrationState> takeover);
// Whether a copy may be made from an epoch (0: the newest). `copy`: the state under copy_name();
// nullopt: none. `copy_takeover`: of its migration. Errors: EPERM: a part of a whole, a unit, or
// itself a copy; ENOENT: it is not kept; EBUSY: a copy is being restored; EEXIST: another tree has
// that name; EINVAL: the name is too long.
Status check_copy(const EpochState& state, uint64_t number, const std::optional<EpochState>& copy,
                  std::optional<MigrationState> copy_takeover);
// The state of a copy of an epoch that is kept.
EpochState copy_of(const EpochState& state, const SealedEpoch& epoch, const std::string& run);

// Whether this partner may take the tree over besides another one that keeps it. Only the first one
// may do so alone: two that both find the source dead would both let the tree run. `instead_of`:
// the first partner, if a person vouches that it will not take over; else empty. Errors: EPERM.
Status check_precedence(const EpochState& state, bool is_alone, const std::string& instead_of);

nlohmann::json to_json(const TreeManager& manager);
// Errors: EPROTO; the message names the fault. Throws like parse_protected_tree().
Result<TreeManager> parse_tree_manager(const nlohmann::json& json);

// Whether a source may send epochs of `tree` under this name. Errors: EACCES: it belongs to another
// source; EEXIST: another tree has this name, and its epoch is kept.
Status check_source(const EpochState& known, std::optional<MigrationState> takeover,
                    const std::string& peer, const ProtectedTree& tree);

// As check_source(), for a tree that rolls back: another process and another source may continue
// it.
// Errors: EEXIST: a tree that does not roll back has this name; EBUSY: it is being rolled back.
Status check_leader(const EpochState& known, std::optional<MigrationState> takeover);

// Whether an epoch continues what is kept: the first one of a run has all memory, each other one
// only what has changed since an epoch that is kept. Errors: ESTALE.
Status check_sequence(const EpochState& kept, const std::string& run, uint64_t number,
                      uint64_t memory_offset);

// Returns the parts of the memory file that `before` refers to and none of `kept` does, by offset.
// Only `offset` and the length of the ranges count; `start` is 0.
std::vector<PageRange> stale_parts(const PageIndex& before, const std::vector<PageIndex>& kept);

}  // namespace ppmr
