#include "migration/source/moved_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "migration/relay/unit_fate.h"
#include "preflight/systemd_unit.h"

namespace ppmr {
namespace {

bool is_in_own_namespace(pid_t pid, const char* name) {
  std::error_code error;
  const auto theirs =
      std::filesystem::read_symlink(fmt::format("/proc/{}/ns/{}", pid, name), error);
  const auto ours = std::filesystem::read_symlink(fmt::format("/proc/self/ns/{}", name), error);
  return theirs != ours;
}

std::vector<std::string> criu_options_for(const std::vector<uint64_t>& journal_sockets) {
  std::vector<std::string> options = {"--manage-cgroups=ignore"};
  if (!journal_sockets.empty()) options.emplace_back("--ext-unix-sk");
  for (const uint64_t inode : journal_sockets) {
    options.insert(options.end(), {"--external", fmt::format("unix[{}]", inode)});
  }
  return options;
}

// The unit moves with its main process and all of that process's descendants.
Status check_members(const UnitFacts& facts, const std::vector<ProcessIdentity>& tasks) {
  for (const pid_t pid : members_of_control_group(facts.control_group)) {
    const bool moves = std::any_of(tasks.begin(), tasks.end(),
                                   [pid](const ProcessIdentity& task) { return task.pid == pid; });
    if (moves) continue;
    return failure(EINVAL,
                   fmt::format("process {0} of the unit is not a descendant of the main "
                               "process {1}, and would be left behind: end process {0} first",
                               pid, facts.main_pid));
  }
  return {};
}

}  // namespace

Result<MovedUnit> find_moved_unit(const std::string& name) {
  MovedUnit unit;
  unit.record.name = name.ends_with(".service") ? name : name + ".service";
  const auto refuse = [&](const std::string& why) {
    return failure(EINVAL, fmt::format("{}: {}", unit.record.name, why));
  };
  if (!is_service_name(unit.record.name)) return refuse("not the name of a service");
  // Continues with the unit's main name: its control group does not have the other names.
  const auto id = unit_property(unit.record.name, "Id");
  if (!id || !is_service_name(*id)) return refuse(id ? "no service" : id.error().message);
  unit.record.name = *id;
  const UnitFacts facts = ask_unit({.name = unit.record.name});
  if (!facts.problem.empty()) return refuse(facts.problem);
  if (facts.active_state != "active" || facts.main_pid <= 0) {
    return refuse(fmt::format("the unit is {} and has the main process {}", facts.active_state,
                              facts.main_pid));
  }
  unit.main_pid = facts.main_pid;
  unit.record.enabled = facts.file_state == "enabled";
  const auto tasks = tasks_of_tree(facts.main_pid);
  if (!tasks) return refuse(tasks.error().message);
  if (Status all = check_members(facts, *tasks); !all) return refuse(all.error().message);
  for (const char* space : {"mnt", "user"}) {
    if (is_in_own_namespace(facts.main_pid, space)) {
      return refuse(
          "its processes have a mount or user namespace of their own, which CRIU cannot move: "
          "systemctl edit the unit on both nodes so that it has no PrivateTmp=, PrivateDevices=, "
          "PrivateUsers=, ProtectSystem= and the like, and restart it");
    }
  }
  auto sockets = journal_sockets_of(*tasks);
  if (!sockets) return refuse(sockets.error().message);
  if (sockets->size() > kJournalSocketsMax) return refuse("too many sockets to the journal");
  unit.record.journal_sockets = std::move(*sockets);
  unit.criu_options = criu_options_for(unit.record.journal_sockets);
  return unit;
}

}  // namespace ppmr
