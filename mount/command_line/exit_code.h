// What ppmr's exit codes mean: a promise to scripts. Codes are added, never changed.
#pragma once

namespace ppmr {

enum class ExitCode : int {
  kSuccess = 0,
  kFailure = 1,           // something that has no code of its own; the message says what
  kUsage = 2,             // wrong flags, sizes or paths on the command line
  kMountFailed = 3,       // the mount point is not there, is busy, or FUSE is not available
  kPeerFailed = 4,        // the other daemon cannot be reached, or is not one that we can talk to
  kNotMounted = 5,        // the path is not inside a ppmr mount (or a checkpoint's name is missing)
  kDaemonSilent = 6,      // the mount's daemon did not answer in time, or has died
  kCheckpointFailed = 7,  // the checkpoint is not there, has failed, or could not be verified
  kTimedOut = 8,          // the time given with --timeout is over
  kRestoreFailed = 9,     // CRIU did not restore the process: nothing runs here
  kPagesLost = 10,        // restored, but not all of its memory reached it: killed
  kMigrationAborted = 11,  // the migration failed: the processes run on where they were
  kMigrationOpen = 12,     // its outcome is not on record on both nodes: ppmr migrate --recover
  kInterrupted = 130,      // SIGINT or SIGTERM (128 + SIGINT, as shells have it)
};

constexpr int to_int(ExitCode exit_code) { return static_cast<int>(exit_code); }

}  // namespace ppmr
