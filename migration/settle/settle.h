// Brings interrupted migrations to their end, without a person: takes the steps that the protocol
// requires of this node, for each open record. The daemons run it at their start and from time to
// time (`ppmr migration-settle`); `ppmr migrate` runs it before a move, and `--recover` on request.
#pragma once

#include <chrono>
#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

struct Settled {
  bool open = false;         // something is left to do, which must wait
  bool unreachable = false;  // it waits for the target, which does not answer
  std::string what;          // what has become of the migration, in words for the user
};

// Takes the next steps of a migration at its source. `patience`: for each request to the target.
Settled settle_source(const RecordStore& store, const OwnershipRecord& record,
                      std::chrono::milliseconds patience);
// Takes the next steps of a migration at its target. Also restarts restores that have failed.
Settled settle_target(const RecordStore& store, const OwnershipRecord& record);

// Settles all open records of one mount of this node, or of all mounts if `mountpoint` is empty.
// Ignores failures, because a later call tries again. Stops at a target that does not answer.
void settle_mount(const RecordStore& store, MigrationRole role, const std::string& mountpoint,
                  std::chrono::milliseconds patience);

// `ppmr migration-settle`: settles the records of a daemon's mount, once. For a target mount, it
// also settles the orphans of this node: source records whose mount has no daemon.
struct SettleCommand {
  std::string role;  // "source" or "target"
  std::string state_directory;
  std::string mountpoint;

  int run() const;
};

}  // namespace ppmr
