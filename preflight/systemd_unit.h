// The unit of systemd that a process belongs to, and whether systemd starts it again.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

// A service in the path of a control group.
struct UnitName {
  std::string name;      // "web.service"; empty: none
  bool of_user = false;  // a service of the user's systemd
  uid_t uid = 0;         // the user, if of_user
  bool operator==(const UnitName&) const = default;
};

// Returns the service in the text of /proc/PID/cgroup, as systemd itself finds it: after the
// slices. Returns no name for a scope, for other paths, and for a name that systemd does not allow.
UnitName find_unit(std::string_view cgroup_text);

// Returns whether systemd allows this name for a service.
bool is_service_name(std::string_view name);

// What systemd reports about a service.
struct UnitFacts {
  UnitName unit;
  std::string problem;  // why systemd did not answer; empty: it answered
  pid_t main_pid = 0;   // 0: systemd does not know it
  std::string active_state;
  std::string control_group;           // path in the hierarchy of systemd
  std::string restart;                 // "no", "always", "on-failure", ...
  std::string file_state;              // "enabled", "static", ...
  std::vector<std::string> triggers;   // active units that start the service: "web.socket"
  std::vector<std::string> prevents;   // RestartPreventExitStatus=: "KILL", "5"
  std::vector<std::string> forces;     // RestartForceExitStatus=
  std::vector<std::string> successes;  // SuccessExitStatus=
};

enum class UnitRestart { kNo, kPerhaps, kSurely };

// Returns whether systemd starts the service again after SIGKILL has ended its main process
// (systemd.service(5), Restart=). `main_is_moved`: the main process is in the tree; otherwise it
// only waits for the tree, and its own exit code is not known.
UnitRestart judge_restart(const UnitFacts& facts, bool main_is_moved);

// Parses lines "NAME=VALUE" of `systemctl show`. Puts into `triggers` all units that can start the
// service, active or not.
void parse_unit_properties(std::string_view text, UnitFacts& facts);
// Returns the ids of the active units in the output of `systemctl show --property=Id,ActiveState`.
std::vector<std::string> parse_active_units(std::string_view text);

// Returns the processes of a control group of systemd and of the groups below it.
std::vector<pid_t> members_of_control_group(const std::string& path);

// Asks systemd, for 5 s at most per question. Does not fail: see UnitFacts::problem.
UnitFacts ask_unit(const UnitName& unit);

}  // namespace ppmr
