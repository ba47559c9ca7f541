// inventory.img and ids-PID.img: which namespaces a tree shares with its node.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace ppmr {

struct TreeNamespaces {
  bool has_own_pids = false;  // the root is in another pid namespace than the node
  uint32_t node_network = 0;  // CRIU's number of the node's network namespace; 0: unknown
};

// Reads the images of the tree with this root from `directory`. Errors: of the file system; EPROTO
// for a malformed file; the message names the file and the fault.
Result<TreeNamespaces> read_namespaces(const std::string& directory, pid_t root);

}  // namespace ppmr
