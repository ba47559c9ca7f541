// `ppmr migration-unit`: the main process of a unit until the processes that move with it have
// arrived (migration/relay/unit_fate.h). systemd starts it.
#pragma once

#include <string>

namespace ppmr {

struct UnitGuestCommand {
  std::string state_directory;
  std::string id;
  bool forget = false;  // the unit has ended: removes the drop-in

  int run() const;
};

}  // namespace ppmr
