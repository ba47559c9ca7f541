// Which program would start a tree again at the source: the processes above it, and their settings.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "preflight/systemd_unit.h"
#include "processes/parents.h"
#include "processes/process_tree.h"

namespace ppmr {

// The service directory of runsv (runit), supervise (daemontools) or s6-supervise.
struct ServiceDirectory {
  std::string path;
  std::optional<bool> starts_again;  // whether the service starts again at its end; unset: unknown
};

// What supervisord would do with a program, according to the program's environment and the
// configuration.
struct SupervisorProgram {
  std::string name;         // empty: supervisord has not started this process
  std::string autorestart;  // "true", "false", "unexpected"; empty: not found
};

struct ManagerFacts {
  std::vector<std::string> root_names;   // names of the root's file, process and script
  std::vector<Parent> parents;           // the nearest first
  std::map<pid_t, std::string> scripts;  // texts of parents that are shells
  std::map<pid_t, ServiceDirectory> service_directories;  // key: a parent
  SupervisorProgram supervisor_program;
  std::optional<UnitFacts> unit;  // set if systemd has started the tree, or a parent that waits
  bool monit_runs = false;
};

// What a parent does when its child has ended.
enum class ParentKind {
  kFirst,    // process 1, or the systemd of a user: reaps orphans
  kManager,  // a service manager, by its name: starts its child again
  kShell,    // depends on its text
  kWrapper,  // ends after its child: setsid, sudo, timeout
  kNeutral,  // starts nothing again: sshd, tmux, slurmstepd, ppmr
  kUnknown,
};
ParentKind kind_of(const Parent& parent);

// Returns how many of the nearest parents are shells and wrappers, which end after their child.
size_t count_passed(const std::vector<Parent>& parents);

// Returns the names by which a text for the shell could call a process.
std::vector<std::string> names_of(const std::string& name, const std::string& program,
                                  const std::vector<std::string>& words);

// Parses the file supervise/status of a service directory. Returns whether the service should run.
std::optional<bool> parse_service_status(std::string_view bytes);

// Returns the value of VARIABLE in the text of /proc/PID/environ; empty: not set.
std::string variable_in(std::string_view environment, const std::string& variable);
// Returns the value of autorestart= in [program:NAME] of a configuration of supervisord; empty: not
// set, or no such program.
std::string find_autorestart(std::string_view configuration, const std::string& program);
// Returns the patterns of the files that a configuration of supervisord includes.
std::vector<std::string> find_includes(std::string_view configuration);

ManagerFacts gather_manager_facts(const ProcessTree& tree);

}  // namespace ppmr
