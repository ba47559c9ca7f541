#pragma once

#include "restart_loader/cli/migrate_command.h"
#include "restart_loader/processes/select_processes.h"

namespace ppmr {

// Moves all trees that match, independently unless `together`.
struct EvacuateCommand {
  ProcessSelector selector;
  bool together = false;
  MigrateCommand migrate;  // its pids are ignored

  int run() const;  // the exit code
};

}  // namespace ppmr
