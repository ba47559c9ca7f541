// `ppmr migration-restore`, the supervisor. It runs the restore of one tree at the target, from the
// wait for the checkpoint until all memory of the tree is in place. The agent starts the
// supervisor. The supervisor then does not need the agent; it needs the daemon only for the images.
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
