#pragma once

namespace ppmr {

struct DevicesCommand {
  bool json = false;

  int run() const;  // the exit code: 0 when ppmr can use one of them
};

}  // namespace ppmr
