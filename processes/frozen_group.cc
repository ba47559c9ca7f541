#include "processes/frozen_group.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "processes/control_groups.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

std::string name_of(const std::string& id) { return "ppmr-frozen-" + id; }

Status write_to(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  errno = 0;
  file << text << std::flush;
  return file ? Status{} : system_failure("write to", path, errno == 0 ? EIO : errno);
}

Status freeze(pid_t pid, const std::string& id) {
  const auto own = unified_group_of(pid);
  if (!own) return failure(own.error());
  if (own->path.ends_with("/" + name_of(id))) return {};
  const std::string group = own->path + "/" + name_of(id);
  if (mkdir(group.c_str(), 0755) != 0 && errno != EEXIST)
    return system_failure("create the control group", group);
  if (Status frozen = write_to(group + "/cgroup.freeze", "1"); !frozen) {
    rmdir(group.c_str());
    return frozen;
  }
  return write_to(group + "/cgroup.procs", std::to_string(pid));
}

Status release(pid_t pid, const std::string& id) {
  const auto group = unified_group_of(pid);
  if (!group || !group->path.ends_with("/" + name_of(id))) return {};
  const std::string own = fs::path(group->path).parent_path();
  if (Status moved = write_to(own + "/cgroup.procs", std::to_string(pid)); !moved) return moved;
  rmdir(group->path.c_str());  // fails as long as there are other tasks
  return {};
}

}  // namespace

Status freeze_in_groups(const std::vector<ProcessIdentity>& tasks, const std::string& id) {
  for (const ProcessIdentity& task : tasks) {
    if (!is_alive(task)) continue;
    if (Status frozen = freeze(task.pid, id); !frozen) return frozen;
  }
  return {};
}

Status release_from_groups(const std::vector<ProcessIdentity>& tasks, const std::string& id) {
  Status all;
  for (const ProcessIdentity& task : tasks) {
    if (!is_alive(task)) continue;
    if (Status released = release(task.pid, id); !released) all = released;
  }
  return all;
}

void remove_frozen_groups(const std::string& id) {
  const auto own = unified_group_of(getpid());
  if (!own) return;
  std::vector<fs::path> left;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(own->mountpoint, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().filename() == name_of(id)) left.push_back(entry->path());
  }
  for (const fs::path& group : left) rmdir(group.c_str());
}

}  // namespace ppmr
