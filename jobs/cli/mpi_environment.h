// What an MPI launcher needs to find its hosts and to start its daemons there.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

// The shell script that writes the launchers' host lists in the job node, from its
// /etc/hosts, and then runs the job's command, which follows as arguments.
std::string start_script(unsigned slots);

// The caller's environment and the settings of Open MPI and of MPICH (Hydra, UCX). Settings that
// only tune the launcher give way to those of the caller.
std::vector<std::string> job_environment(const std::string& job, char** environment);

}  // namespace ppmr
