// A function for tests, chosen at link time: the shipped binary has a pause_point() that does
// nothing, //tests:ppmr has one that waits (tests/pause_point.cc).
#pragma once

#include <string>

#include "migration/records/ownership_record.h"

namespace ppmr {

// RecordStore calls it after each durable change of a migration's state, in the thread that made
// the change. `directory` holds the versions of the record.
void pause_point(const std::string& directory, const OwnershipRecord& record);

}  // namespace ppmr
