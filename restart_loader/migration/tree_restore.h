// `ppmr migration-restore`: the process that owns the restore of one tree at the target, from the
// wait for its checkpoint until all of its memory is in place. The agent starts it; it depends
// neither on the agent nor, but for the images themselves, on the daemon.
#pragma once

#include <string>

#include "restart_loader/records/record_store.h"

namespace ppmr {

struct TreeRestoreCommand {
  std::string state_directory;
  std::string id;
  size_t tree = 0;

  int run() const;  // the exit code; what people want to know is in the record
};

}  // namespace ppmr
