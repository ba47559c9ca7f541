// The copy of a tree's newest epoch on its partner's disk, and the decisions about it: when it is
// written, replaced, and brought back into memory. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "migration/epochs/epoch_state.h"

namespace ppmr {

struct EpochOnDisk {
  std::string file;       // absolute path
  std::string run;        // of the epoch in the file; empty: unknown
  uint64_t number = 0;    // of this epoch; 0: none is complete, or it could not be read
  int64_t frozen_ns = 0;  // of this epoch
  std::string error;      // why the newest epoch is not there; empty: nothing has failed since
  bool operator==(const EpochOnDisk&) const = default;
};

nlohmann::json to_json(const EpochOnDisk& on_disk);
// Errors: EPROTO.
Result<EpochOnDisk> parse_epoch_on_disk(const nlohmann::json& json);

// Returns whether the partner must write the newest epoch to its disk. It writes no epoch of a tree
// that rolls back (see EpochState): only the leader of the whole knows which epochs of its parts
// belong together. `takeover`: see judge_source().
bool is_to_write(const EpochState& state, std::optional<MigrationState> takeover,
                 const EpochOnDisk& on_disk);

// Returns whether a completely written epoch may replace the previous one on the disk. `now`: the
// state after the write; nullopt: the epochs of the tree were forgotten during the write.
bool may_replace(const EpochState& written, const std::optional<EpochState>& now,
                 std::optional<MigrationState> takeover);

// What becomes of an epoch on the disk when a target starts.
enum class Return {
  kToMemory,  // the memory has lost it
  kNone,      // the memory has an epoch, or its source has begun to protect another tree
  kRemove,    // the tree was taken over: it must not be restored again, and its source must know
};
// `here`: the state in memory; nullopt: none. `is_taken_over`: a record says that the partner took
// the tree over.
Return judge_return(const EpochState& on_disk, const std::optional<EpochState>& here,
                    bool is_taken_over);

}  // namespace ppmr
