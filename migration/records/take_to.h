// Brings a record, or a stored record, to the state that a test needs.
#pragma once

#include <gtest/gtest.h>

#include "migration/records/ownership_record.h"
#include "migration/records/record_store.h"

namespace ppmr {

// Begins the record and takes it through the states of its role to `last`, which it reaches at
// `last_ns`.
inline void take_to(OwnershipRecord& record, MigrationState last, int64_t began_ns = 1,
                    int64_t last_ns = 1) {
  using enum MigrationState;
  record.begin(began_ns);
  const auto later = record.role == MigrationRole::kSource
                         ? std::vector{kDumping, kFrozen, kSealed, kCommitted, kFinished}
                         : std::vector{kReady, kRunning, kFinished};
  if (last == kAborted) {
    ASSERT_TRUE(record.move_to(last, last_ns));
    return;
  }
  for (size_t i = 0; record.state() != last; ++i) {
    ASSERT_LT(i, later.size()) << to_string(record.role, last);
    ASSERT_TRUE(record.move_to(later[i], later[i] == last ? last_ns : began_ns));
  }
}

// Takes a stored record one step, and applies `also`, in one new version. Does nothing if the
// record already has that state.
inline Result<OwnershipRecord> advance(const RecordStore& store, const std::string& id,
                                       MigrationRole role, MigrationState state,
                                       const RecordStore::Change& also = {}) {
  const auto now = store.read(id, role);
  if (!now || now->state() == state) return now;
  return store.change(id, role, [&](OwnershipRecord& record) -> Status {
    if (Status moved = record.move_to(state); !moved) return moved;
    return also ? also(record) : Status{};
  });
}

}  // namespace ppmr
