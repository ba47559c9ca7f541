// The exit codes of ppmr. Scripts rely on them: codes can be added, but not changed.
#pragma once

namespace ppmr {

enum class ExitCode : int {
  kSuccess = 0,
  kFailure = 1,            // an error without its own code, see the message
  kUsage = 2,              // invalid option, size or path on the command line
  kMountFailed = 3,        // mount point missing or busy, or FUSE not available
  kPeerFailed = 4,         // peer daemon unreachable, refused, or of an incompatible version
  kNotMounted = 5,         // path not in a ppmr mount, or without the name of a checkpoint
  kDaemonSilent = 6,       // the daemon of the mount did not answer in time, or has ended
  kCheckpointFailed = 7,   // checkpoint missing, failed, or not verified
  kTimedOut = 8,           // --timeout expired
  kRestoreFailed = 9,      // CRIU did not restore the process: it does not run at the target
  kPagesLost = 10,         // restored, but killed because part of its memory was lost
  kMigrationAborted = 11,  // the migration failed: the processes continue at the source
  kMigrationOpen = 12,     // unfinished: run `ppmr migrate --recover`
  kReplaced = 13,          // a protected process runs at its partner: the copy here was ended
  kInterrupted = 130,      // SIGINT or SIGTERM (128 + SIGINT, the shells' convention)
};

constexpr int to_int(ExitCode exit_code) { return static_cast<int>(exit_code); }

}  // namespace ppmr
