// Checks what an operator has set up on a node: configuration files, systemd units and mounts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cli/doctor/diagnosis.h"
#include "mount/mount_table.h"
#include "rdma_stream/connection/credentials.h"

namespace ppmr {

// The parts of the daemons' configuration files that other checks need. Leaves out files that it
// cannot read: check_configuration() reports them.
struct Configuration {
  std::vector<std::string> files;
  std::vector<Credentials> credentials;  // each element once
  std::vector<std::string> spill_directories;
  std::vector<std::string> state_directories;
  struct Target {
    std::string address;  // HOST:PORT
    Credentials credentials;
  };
  std::vector<Target> targets;  // of the sources; each address once
};
// `directory` contains target.conf, to.conf, source.d/NAME.conf and protect.d/NAME.conf.
Configuration read_configuration(const std::string& directory);
// Returns the configuration files in the directory, sorted.
std::vector<std::string> configuration_files(const std::string& directory);
// Returns the arguments with which ppmr checks the file; empty if the name of the file does not
// show which daemon uses it.
std::vector<std::string> check_arguments(const std::string& file);

// Lets each daemon check its file, as `ppmr config check` does. `ppmr`: the path of the program.
Diagnoses check_configuration(const Configuration& configuration, const std::string& directory,
                              const std::string& ppmr);

struct UnitState {
  std::string name;    // "ppmr-target.service"
  std::string active;  // "active", "failed", "inactive", ...
  std::string detail;  // "running", "auto-restart", ...
};
// Parses the lines of `systemctl list-units --all --plain --no-legend`.
std::vector<UnitState> parse_units(const std::string& text);
// `files`: the configuration files; each should have an active unit.
Diagnoses judge_units(const std::vector<UnitState>& units, const std::vector<std::string>& files);
// Checks the units that systemd reports, if systemd runs this node. `root`: the directory that
// contains /run.
Diagnoses check_units(const std::vector<std::string>& files, const std::string& root = "");

// Requests the status of each mount's daemon, with a time limit of one second. Never accesses the
// mount itself.
Diagnoses check_mounts(const std::vector<MountEntry>& mounts);

}  // namespace ppmr
