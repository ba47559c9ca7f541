// Returns the name of this node for messages to its peers.
#pragma once

#include <unistd.h>

#include <string>

namespace ppmr {

inline std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace ppmr
