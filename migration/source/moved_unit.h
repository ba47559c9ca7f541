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
  // Tell CRIU to leave out the control group and the output of the unit: systemd gives them to its
  // copy.
  std::vector<std::string> criu_options;
};

// Asks systemd. `name`: with or without ".service", or another name of the unit. Errors: EINVAL, of
// systemctl and of the file system; the message says why the unit cannot move, and what to do.
Result<MovedUnit> find_moved_unit(const std::string& name);

}  // namespace ppmr
