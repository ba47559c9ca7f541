// `ppmr migration-restore`, the supervisor: runs the restore of one tree at the target, from the
// wait for its checkpoint until all of its memory is in place. The agent starts it. It does not
// depend on the agent, and on the daemon only for the images.
#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

struct TreeRestoreCommand {
  std::string state_directory;
  std::string id;
  size_t tree = 0;

  int run() const;  // returns the exit code; the results are in the record
};

}  // namespace ppmr
