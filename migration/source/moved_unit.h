// A unit of systemd with all of its processes, as `ppmr migrate --unit` moves it and `ppmr protect
// --unit` protects it.
#pragma once

#include <string>
#include <vector>

#include "migration/records/ownership_record.h"

namespace ppmr {

struct MovedUnit {
  UnitRecord record;
  pid_t main_pid = 0;  // the root of its processes
  // Make CRIU leave out the control group and the output of the unit: systemd provides both for the
  // copy of the unit.
  std::vector<std::string> criu_options;
};

// Asks systemd for the facts of a unit. `name`: with or without ".service", or another name of the
// unit. Errors: EINVAL; those of systemctl and of the file system. The message says why the unit
// cannot move, and what to do.
Result<MovedUnit> find_moved_unit(const std::string& name);

}  // namespace ppmr
