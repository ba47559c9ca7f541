// Marks that the relay (criu_relay.h) leaves in the work directory, one file each, for a later
// process that must find out how far CRIU got.
#pragma once

#include <cstdint>
#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

enum class RelayMark {
  kContainerMade,  // the container runtime made its container; holds the boot ID
  kLetGo,          // the relay let CRIU continue
  kResumed,        // CRIU is about to let the tasks run
  kRunsSince,      // CRIU let all tasks run; holds the time, CLOCK_REALTIME in ns
  kResponded,      // CRIU reported its outcome
};

// Creates the mark with this content. Errors: of the file system.
Status leave_mark(const std::string& work_directory, RelayMark mark,
                  const std::string& content = "");

// Whether the relay let CRIU continue.
bool was_let_go(const std::string& work_directory);

// Whether a task of a restore that has ended may have run its own code. No task has while CRIU
// waits for the relay, or if CRIU gave up by itself: it then kills what it restored. A CRIU that
// was killed, or lost its relay, may have let tasks run.
bool may_have_run(const std::string& work_directory, bool criu_was_killed);

// When CRIU had let all tasks run; CRIU itself ends later. 0: unknown.
int64_t runs_since_ns(const std::string& work_directory);

// Removes the marks of a restore, before the next attempt.
void forget_restore(const std::string& work_directory);

// Whether the runtime got as far as making its container, in this boot of the node.
bool container_was_made(const std::string& work_directory);
void forget_that_container_was_made(const std::string& work_directory);

}  // namespace ppmr
