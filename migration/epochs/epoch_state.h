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
// Only one node may run the tree: the source before the decision, the partner after it. The partner
// decides, and answers its source, under the lock of the tree's directory (epoch_store.h). So a
// source that receives the answer to go on has not been replaced.
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

// Identifies the tree at its source. A new process with the same name is another tree.
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
  // CLOCK_REALTIME of the freeze: on the source's clock at the source, and on the partner's clock
  // at the partner.
  int64_t frozen_ns = 0;
  int64_t pause_ms = 0;
  uint64_t bytes = 0;          // memory of the tree
  uint64_t arrived_bytes = 0;  // memory that this epoch has sent
  uint64_t memory_end = 0;     // where its pages end in the memory file of its run
  // At the partner: the largest error of frozen_ns. -1: unknown, frozen_ns is on the source's
  // clock.
  int64_t clock_uncertainty_ns = -1;
};

// age_of() returns how old an epoch is, 0 if its clock is ahead. age_text() returns a text such as
// "38 s old", with the uncertainty of the clock if that is a tenth of the age or more.
std::chrono::milliseconds age_of(const SealedEpoch& epoch, int64_t now_ns);
std::string age_text(const SealedEpoch& epoch, int64_t now_ns);

struct EpochState {
  std::string name;        // see is_protection_name()
  std::string peer;        // the identity of the source, as the target's daemon has verified it
  std::string mountpoint;  // of the target's mount through which the epochs arrive
  std::string audit_file;  // of its daemon; empty: syslog only
  ProtectedTree tree;
  // The 32-digit ID of the run of epochs. Epochs of one run share a memory file.
  std::string run;
  SealedEpoch newest;
  std::vector<SealedEpoch> older;  // the other kept epochs, the newest first
  TreeManager manager;             // in the newest epoch
  std::vector<std::string> criu_options;
  nlohmann::json restart_policy = nlohmann::json::object();
  std::string takeover;  // ID of the migration that takes the tree over; empty: none
  // ID of the takeover that has let the tree run here with all of its memory; empty: none. Shows
  // that the source was replaced, even when the record of the takeover is removed.
  std::string completed_takeover;
  // The source's name for the first partner, which takes this tree over before this partner may;
  // empty: this is the only or the first partner.
  std::string first_partner;
  // The tree is a part of a whole that rolls back together (a job node). The leader of the whole
  // decides where and from which epoch the tree runs. So the source may always go on, and a
  // takeover does not end the epochs.
  bool rolls_back = false;
  // The state of a copy, which copy_of() made from an epoch of another state. The copy runs beside
  // the original tree, and has no source.
  bool is_copy = false;
};

// Returns the epochs that are kept, the newest first.
std::vector<SealedEpoch> kept_epochs(const EpochState& state);
// Finds a kept epoch. `number`: 0 means the newest. Errors: ENOENT; the message names the kept
// epochs.
Result<SealedEpoch> find_epoch(const EpochState& state, uint64_t number);
// Returns the state after `epoch` has been sealed. Keeps those earlier epochs whose numbers are at
// least `oldest` and below the number of `epoch`.
EpochState with_newest(EpochState state, const SealedEpoch& epoch, uint64_t oldest);
// Removes all epochs from the state: the name now belongs to another tree, or to none.
void forget_all_epochs(EpochState& state);

// Returns whether the name is valid. It is part of paths: 1 to 64 letters, digits and "._@-", and
// no dot at the beginning.
bool is_protection_name(const std::string& name);

// Returns the name of the checkpoint with the description of an epoch. The name of the checkpoint
// with the epoch's memory has the suffix ".memory" in addition.
std::string epoch_checkpoint(const std::string& name, const std::string& run, uint64_t number);
// Returns whether a checkpoint belongs to an epoch of the tree with this name.
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
  kGoOnAfterAbort,  // a takeover has begun and is not decided: the partner aborts it first
  kNotRun,          // the tree runs at the partner
};
// `takeover`: state of the migration that takes the tree over; nullopt: there is none. The answer
// does not apply to a tree that rolls back: its source may always go on.
SourceMay judge_source(std::optional<MigrationState> takeover);

// Returns the state of a takeover whose record cannot be read, as far as this state shows it;
// nullopt: it is unknown whether the source may run the tree. `is_lost`: the record is missing or
// is set aside. Then no process can continue the takeover.
std::optional<MigrationState> judge_without_record(const EpochState& state, bool is_lost);

// Checks whether this node may take the tree over from epoch `number`; 0: the newest. Errors:
// ENOENT: the epoch is not kept; EALREADY: the tree was taken over.
Status check_takeover(const EpochState& state, std::optional<MigrationState> takeover,
                      uint64_t number = 0);

// Returns the name of the copy of a tree. A copy runs beside the tree, so it needs its own name: a
// takeover under the tree's name would end the source.
std::string copy_name(const std::string& name);
bool is_copy_name(const std::string& name);
// Checks whether a source may protect a tree under this name. Errors: EINVAL: the name is not
// valid, or is the name of a copy.
Status check_protected_name(const std::string& name);
// Checks whether the tree has a source that a takeover may end. Errors: EPERM: the tree is a copy.
Status check_has_source(const EpochState& state);
// Returns whether the epoch of a copy is not needed any more. `takeover`: the state of the copy's
// migration. Call it under the lock: a process that makes a copy holds the lock until the migration
// has begun.
bool is_abandoned_copy(const EpochState& state, std::optional<MigrationState> takeover);
// Checks whether a copy may be made from an epoch (0: the newest). `copy`: the state under
// copy_name(); nullopt: none. `copy_takeover`: the state of that copy's migration. Errors: EPERM:
// the tree is a part of a whole, a unit or a copy; ENOENT: the epoch is not kept; EBUSY: a copy is
// being restored; EEXIST: another tree has that name; EINVAL: the name is too long.
Status check_copy(const EpochState& state, uint64_t number, const std::optional<EpochState>& copy,
                  std::optional<MigrationState> copy_takeover);
// Returns the state of a copy of a kept epoch. `run`: the ID of the copy's run.
EpochState copy_of(const EpochState& state, const SealedEpoch& epoch, const std::string& run);

// Checks whether this partner may take the tree over if another partner also keeps it. Only the
// first partner may do so without a person: two partners that both find the source dead would both
// run the tree. `is_alone`: no person has decided this takeover. `instead_of`: the name of the
// first partner, if a person vouches that the first partner will not take over; else empty. Errors:
// EPERM.
Status check_precedence(const EpochState& state, bool is_alone, const std::string& instead_of);

nlohmann::json to_json(const TreeManager& manager);
// Errors: EPROTO; the message names the fault. Throws like parse_protected_tree().
Result<TreeManager> parse_tree_manager(const nlohmann::json& json);

// Checks whether a source may send epochs of `tree` under this name. Errors: EACCES: the name
// belongs to another source; EEXIST: another tree has this name, and its epoch is kept.
Status check_source(const EpochState& known, std::optional<MigrationState> takeover,
                    const std::string& peer, const ProtectedTree& tree);

// Checks whether another tree may get the name of the known one, whose epochs are then removed.
// Errors: EBUSY: the known tree was taken over, and still reads its memory from these epochs.
Status check_replaceable(const EpochState& known, std::optional<MigrationState> takeover);

// Replaces check_source() for a tree that rolls back, which another process at another source may
// continue. Errors: EEXIST: a tree that does not roll back has this name; EBUSY: the tree is being
// rolled back.
Status check_leader(const EpochState& known, std::optional<MigrationState> takeover);

// Checks whether an epoch continues the kept ones. The first epoch of a run has all memory; each
// later one has only the memory that changed since the newest kept epoch. Errors: ESTALE.
Status check_sequence(const EpochState& kept, const std::string& run, uint64_t number,
                      uint64_t memory_offset);

// Returns the parts of the memory file that `before` refers to and no index of `kept` refers to, in
// the order of their offsets. Only `offset` and the length of the ranges count; `start` is 0.
std::vector<PageRange> stale_parts(const PageIndex& before, const std::vector<PageIndex>& kept);

}  // namespace ppmr
