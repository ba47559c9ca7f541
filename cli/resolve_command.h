#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// `ppmr migrate --resolve ID`: an operator decides a migration whose other node is lost for good.
// Otherwise the migration would stay open.
struct ResolveCommand {
  std::string digits;     // the ID or its first digits; empty: none
  bool run_here = false;  // false: --discard
  std::string fence;  // a command that returns 0 if the other node is certainly dead; empty: none
  std::string state_directory = kDefaultStateDirectory;
  bool json = false;

  int run() const;
};

}  // namespace ppmr
