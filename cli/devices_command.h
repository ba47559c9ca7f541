#pragma once

namespace ppmr {

struct DevicesCommand {
  bool json = false;

  int run() const;  // returns the exit code; kSuccess if ppmr can use a device
};

}  // namespace ppmr
