#pragma once

#include "cli/migrate_command.h"
#include "processes/select_processes.h"

namespace ppmr {

// Moves all trees that match, independently unless `together`.
struct EvacuateCommand {
  ProcessSelector selector;
  bool together = false;
  MigrateCommand migrate;  // its pids are ignored

  int run() const;  // the exit code
};

}  // namespace ppmr
