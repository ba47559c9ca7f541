// Keeps the shared memory of a tree that waits for its restore (processes/files/segment_builder.h).
// This process has a descriptor of each shared memory; CRIU opens it in /proc. The daemon has
// another descriptor, for a further attempt after the death of this process.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "processes/files/segment_builder.h"

namespace ppmr {

struct ReceivedMemoryPlace {
  std::string control_socket;  // of the target's daemon
  std::string checkpoint;      // of the tree
  std::string owner;           // the peer that has sent it
};

// Threads: one.
class ReceivedMemory {
 public:
  // Takes what has arrived. Errors: those of the daemon.
  Status keep(const ReceivedMemoryPlace& place, std::vector<BuiltSegment> memory);
  // Takes what an earlier supervisor has given to the daemon. Errors: those of the daemon.
  Status fetch(const ReceivedMemoryPlace& place);
  // Lists the shared memory for the next attempt of CRIU. Replaces each memory that an earlier
  // attempt has sealed by a copy, because CRIU seals it again. Errors: ENOMEM; those of the file
  // system.
  Status offer_to_criu(const std::string& work);

 private:
  std::vector<BuiltSegment> memory_;
};

}  // namespace ppmr
