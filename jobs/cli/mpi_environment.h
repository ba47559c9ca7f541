// The environment and the files with which an MPI launcher finds the hosts of its job, and starts
// its daemons there.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

// Returns the shell script that writes the launchers' host lists in the job node, from the node's
// /etc/hosts. Then the script runs the job's command, which follows as arguments.
std::string start_script(unsigned slots);

// The transport between ranks of different nodes.
enum class Transport { kTcp, kRdma };

// Returns the caller's environment and the settings of Open MPI and of MPICH (Hydra, UCX). If a
// setting only tunes the launcher, the caller's value has precedence.
std::vector<std::string> job_environment(const std::string& job, char** environment,
                                         Transport transport);

// Returns the part of a launcher's environment that its daemons in other nodes get.
std::vector<std::string> environment_for_daemons(char** environment);

}  // namespace ppmr
