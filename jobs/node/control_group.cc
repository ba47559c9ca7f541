#include "jobs/node/control_group.h"

#include <unistd.h>

#include <sstream>
#include <string_view>

#include "base/whole_file.h"

namespace ppmr {
namespace {

constexpr const char* kHierarchies = "/sys/fs/cgroup";

// Returns whether the group is below the groups of Slurm. Only root can make groups at their level.
// Further down, users may make groups with any name.
bool is_of_slurm(const std::string& group) {
  // If one machine has several slurmd, they use "/slurm_NODE" and "NODE_slurmstepd.scope".
  if (group.starts_with("/slurm/") || group.starts_with("/slurm_")) return true;
  constexpr std::string_view kSlice = "/system.slice/";
  if (!group.starts_with(kSlice)) return false;
  return std::string_view(group)
      .substr(kSlice.size(), group.find('/', kSlice.size()) - kSlice.size())
      .ends_with("slurmstepd.scope");
}

void remove_upwards(const std::string& hierarchy, std::string group) {
  while (group.size() > 1) {
    // rmdir(2) fails for a group that contains processes or groups.
    if (rmdir((hierarchy + group).c_str()) != 0 && errno != ENOENT) return;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

std::string step_group(const std::string& process_groups, const std::string& allocation) {
  const std::string job = "/job_" + allocation + "/";
  std::string deepest;
  std::istringstream lines(process_groups);  // "4:memory:/slurm/uid_0/job_1/step_0"
  for (std::string line; std::getline(lines, line);) {
    const size_t controllers = line.find(':');
    const size_t path =
        controllers == std::string::npos ? controllers : line.find(':', controllers + 1);
    if (path == std::string::npos) continue;
    const std::string group = line.substr(path + 1);
    if (!is_of_slurm(group) || group.find(job) == std::string::npos) continue;
    if (group.find("/../") != std::string::npos) continue;  // outside of this namespace's hierarchy
    if (group.size() > deepest.size()) deepest = group;
  }
  return deepest;
}

void remove_empty_groups(const std::string& group) {
  remove_upwards(kHierarchies, group);  // for cgroup v2
  std::error_code error;
  for (const auto& entry : list_directory(kHierarchies).value_or(DirectoryEntries())) {
    if (entry.is_directory(error)) remove_upwards(entry.path(), group);
  }
}

}  // namespace ppmr
