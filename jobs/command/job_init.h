// Process 1 of a job node: runs the commands that clients send, and reaps orphans.
#pragma once

namespace ppmr {

// Every command of the node gets the variables of this process that begin with this prefix, without
// the prefix.
inline constexpr const char* kForCommands = "PPMR_FOR_COMMANDS_";
// If this variable is set, the process also starts the directory of peers (peer_directory.h).
inline constexpr const char* kIsPeerDirectory = "PPMR_IS_PEER_DIRECTORY";

// `ppmr job init`, a hidden command that the agent starts through runc. It takes the job's token
// from the environment variable PPMR_JOB_TOKEN and writes it to kTokenFile for `ppmr job rsh`.
struct JobInit {
  int run();  // returns only after an error; the agent kills this process to end the job node
};

}  // namespace ppmr
