#include "mount/mount_table.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <sstream>

#include "base/mount_names.h"

namespace ppmr {
namespace {

constexpr int kSymlinksMax = 40;  // the kernel's MAXSYMLINKS

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const size_t space = std::min(line.find(' '), line.size());
    if (space > 0) words.push_back(line.substr(0, space));
    line.remove_prefix(std::min(space + 1, line.size()));
  }
  return words;
}

void push_components(std::deque<std::string>& pending, std::string_view path) {
  std::vector<std::string> components;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    if (slash > 0) components.emplace_back(path.substr(0, slash));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  pending.insert(pending.begin(), components.begin(), components.end());
}

std::string join(const std::vector<std::string>& components) {
  std::string path;
  for (const std::string& component : components) path.append("/").append(component);
  return path.empty() ? "/" : path;
}

}  // namespace

// An example of a line of /proc/self/mountinfo:
// 36 35 98:0 /root /mount/point rw,noatime shared:1 master:2 - type source rw,errors=continue
std::vector<MountEntry> parse_mountinfo(std::string_view text) {
  std::vector<MountEntry> mounts;
  while (!text.empty()) {
    const size_t newline = std::min(text.find('\n'), text.size());
    const auto words = words_of(text.substr(0, newline));
    text.remove_prefix(std::min(newline + 1, text.size()));
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 3) continue;
    MountEntry entry{unescape_mount_name(words[4]), unescape_mount_name(words[3]),
                     unescape_mount_name(dash[1]), unescape_mount_name(dash[2])};
    const auto hidden = std::find_if(mounts.begin(), mounts.end(), [&](const MountEntry& mount) {
      return mount.mountpoint == entry.mountpoint;
    });
    if (hidden != mounts.end()) mounts.erase(hidden);
    mounts.push_back(std::move(entry));
  }
  return mounts;
}

Result<std::vector<MountEntry>> read_mounts() {
  std::ifstream file("/proc/self/mountinfo");
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return system_failure("read", "/proc/self/mountinfo");
  return parse_mountinfo(text.str());
}

Result<std::vector<MountEntry>> read_ppmr_mounts() {
  auto mounts = read_mounts();
  if (mounts) std::erase_if(*mounts, [](const MountEntry& mount) { return !mount.is_ppmr(); });
  return mounts;
}

Result<MountedPath> find_mount(const std::string& path) {
  const auto mounts = read_mounts();
  if (!mounts) return failure(mounts.error());
  return find_mount(path, *mounts);
}

// Walks the path like the kernel, but looks each prefix up in the mount table before it accesses
// the prefix. Accesses no path inside a ppmr mount, so it follows no symbolic links there.
Result<MountedPath> find_mount(const std::string& path, const std::vector<MountEntry>& mounts) {
  if (path.empty()) return failure(ENOENT, "the path is empty");
  std::deque<std::string> pending;
  push_components(pending, path);
  if (path[0] != '/') {
    char directory[4096];
    if (getcwd(directory, sizeof(directory)) == nullptr)
      return system_failure("find", "the working directory");
    push_components(pending, directory);
  }
  std::vector<std::string> resolved;
  const MountEntry* mount = nullptr;  // the ppmr mount that contains `resolved`
  size_t mount_depth = 0;             // number of components of that mount's path
  int symlinks = 0;
  while (!pending.empty()) {
    const std::string component = std::move(pending.front());
    pending.pop_front();
    if (component == ".") continue;
    if (component == "..") {
      if (!resolved.empty()) resolved.pop_back();
      if (resolved.size() < mount_depth) mount = nullptr, mount_depth = 0;
      continue;
    }
    resolved.push_back(component);
    if (mount != nullptr) continue;
    const std::string here = join(resolved);
    for (const MountEntry& entry : mounts) {
      if (entry.is_ppmr() && entry.mountpoint == here)
        mount = &entry, mount_depth = resolved.size();
    }
    if (mount != nullptr) continue;

    struct stat status;
    if (lstat(here.c_str(), &status) != 0) {
      return system_failure(here == path ? "look up" : "look up " + here + " of", path);
    }
    if (!S_ISLNK(status.st_mode)) continue;
    if (++symlinks > kSymlinksMax)
      return system_failure("follow the symbolic links of", path, ELOOP);
    char target[4096];
    const ssize_t length = readlink(here.c_str(), target, sizeof(target));
    if (length < 0) return system_failure("read link", here);
    const std::string_view link(target, static_cast<size_t>(length));
    if (link.starts_with('/')) {
      resolved.clear();
    } else {
      resolved.pop_back();
    }
    push_components(pending, link);
  }
  if (mount == nullptr) return failure(ENODEV, path + ": not in a ppmr mount");
  std::string remainder = mount->root == "/" ? "" : mount->root.substr(1);
  for (size_t i = mount_depth; i < resolved.size(); ++i) {
    remainder.append(remainder.empty() ? "" : "/").append(resolved[i]);
  }
  return MountedPath{*mount, std::move(remainder)};
}

}  // namespace ppmr
