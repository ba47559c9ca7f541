// Marks that the relay (criu_relay.h) leaves in the work directory, one file each. A later process
// reads them to find out how far CRIU got.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace ppmr {

enum class RelayMark {
  kRuntimeStarted,    // the container runtime begins without the container; content: the boot ID
  kContainerCreated,  // the container runtime created the container; content: the boot ID
  kLetGo,             // the relay let CRIU continue
  kResumed,           // CRIU is about to let the tasks run
  kRunsSince,         // CRIU let all tasks run; content: the time, CLOCK_REALTIME in ns
  kResponded,         // CRIU reported its outcome
};

// Creates the mark with this content. Errors: of the file system.
Status leave_mark(const std::string& work_directory, RelayMark mark,
                  const std::string& content = "");

// Returns whether the relay let CRIU continue.
bool was_let_go(const std::string& work_directory);

enum class CriuEnd {
  kByItself,
  kKilled,  // or it is unknown how it ended
  kInVain,  // it was killed while it waited for a task that was dead
};

// Returns whether, in a restore that has ended, a task may have run its own code. No task has run
// if the relay never let CRIU continue. No task has run, either, if CRIU failed by itself, because
// CRIU then kills what it restored. In this case the relay has recorded CRIU's response, or CRIU's
// log (restore.log) reports the failure. If CRIU was killed or lost its relay after the relay let
// it continue, tasks may have run. If CRIU waited in vain, no task has run unless the mark kResumed
// exists: CRIU notifies the relay before it lets the tasks run, and the relay leaves the mark
// before it answers.
bool may_have_run(const std::string& work_directory, CriuEnd end);

// Returns the time at which CRIU had let all tasks run; CRIU itself ends later. 0: unknown.
int64_t runs_since_ns(const std::string& work_directory);

// Removes the marks of a restore, before the next attempt.
void forget_restore(const std::string& work_directory);

enum class MadeContainer {
  kNone,
  kPartly,  // the runtime began, and may have been killed before it recorded the container
  kWhole,
};

// Returns what the container runtime has created of the container since this node booted.
MadeContainer made_container(const std::string& work_directory);
void forget_made_container(const std::string& work_directory);

}  // namespace ppmr
