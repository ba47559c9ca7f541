#include "processes/files/tmpfs_mounts.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <thread>

#include "base/mount_names.h"
#include "base/whole_file.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kFieldsBeforeSeparator = 6;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<TmpfsLine> parse_line(std::string_view line) {
  const auto words = split(line, ' ');
  if (words.size() <= kFieldsBeforeSeparator) return std::nullopt;
  const auto separator = std::find(words.begin() + kFieldsBeforeSeparator, words.end(), "-");
  if (words.end() - separator < 4) return std::nullopt;  // "-", type, source, options
  if (separator[1] != "tmpfs" || words[3] != "/") return std::nullopt;
  const auto id = number_in<uint64_t>(words[0]);
  const auto device = split(words[2], ':');
  if (!id || device.size() != 2) return std::nullopt;
  const auto major_number = number_in<unsigned>(device[0]);
  const auto minor_number = number_in<unsigned>(device[1]);
  if (!major_number || !minor_number) return std::nullopt;
  return TmpfsLine{*id, makedev(*major_number, *minor_number), unescape_mount_name(words[4]),
                   std::string(separator[3])};
}

// Returns nullopt if another mount hides this one, or if it cannot be opened.
std::optional<PrivateTmpfs> open_alone(const TmpfsLine& line) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const UniqueFd place(
      static_cast<int>(syscall(SYS_openat2, AT_FDCWD, line.mountpoint.c_str(), &how, sizeof(how))));
  if (!place) return std::nullopt;
  struct statx facts {};
  if (statx(place.get(), "", AT_EMPTY_PATH, STATX_MNT_ID, &facts) != 0) return std::nullopt;
  if (facts.stx_mnt_id != line.mount_id) return std::nullopt;
  const UniqueFd copy(
      open_tree(place.get(), "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!copy) return std::nullopt;
  // Keeps reads from changing the access times.
  mount_attr attributes{};
  attributes.attr_clr = MOUNT_ATTR__ATIME;
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                        MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOATIME;
  attributes.propagation = MS_PRIVATE;
  if (mount_setattr(copy.get(), "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) != 0) {
    return std::nullopt;
  }
  UniqueFd root(openat(copy.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return std::nullopt;
  return PrivateTmpfs{std::move(root), line.device, line.options, line.mountpoint};
}

Status append_those_of(pid_t pid, std::set<dev_t>& known, std::vector<PrivateTmpfs>& found) {
  const std::string path = "/proc/" + std::to_string(pid) + "/ns/mnt";
  const UniqueFd its(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!its) return system_failure("open", path);
  // Reads mountinfo before it enters the namespace, because /proc there may belong to another pid
  // namespace, or be missing.
  const auto text = read_whole_file("/proc/" + std::to_string(pid) + "/mountinfo");
  if (!text) return failure(text.error());
  Status done;
  // A single thread can enter a mount namespace only after it has left the shared root directory of
  // its process (CLONE_FS).
  std::thread([&] {
    if (unshare(CLONE_FS) != 0 || setns(its.get(), CLONE_NEWNS) != 0) {
      done = system_failure("enter the mount namespace", path);
      return;
    }
    for (const TmpfsLine& line : parse_tmpfs_lines(*text)) {
      if (known.contains(line.device)) continue;
      auto opened = open_alone(line);
      if (!opened) continue;
      known.insert(line.device);
      found.push_back(std::move(*opened));
    }
  }).join();
  return done;
}

}  // namespace

std::vector<TmpfsLine> parse_tmpfs_lines(std::string_view mountinfo) {
  std::vector<TmpfsLine> lines;
  for (const std::string_view text : split(mountinfo, '\n')) {
    if (auto line = parse_line(text)) lines.push_back(std::move(*line));
  }
  return lines;
}

Result<std::vector<PrivateTmpfs>> open_private_tmpfs(pid_t root) {
  std::vector<PrivateTmpfs> found;
  const auto own_user = read_process_link(getpid(), "ns/user");
  const auto own_mounts = read_process_link(getpid(), "ns/mnt");
  const auto own_lines = read_whole_file("/proc/self/mountinfo");
  if (!own_user) return failure(own_user.error());
  if (!own_mounts) return failure(own_mounts.error());
  if (!own_lines) return failure(own_lines.error());
  std::set<dev_t> known;
  for (const TmpfsLine& line : parse_tmpfs_lines(*own_lines)) known.insert(line.device);
  const auto tree = read_tree(root);
  if (!tree) return failure(tree.error());
  std::set<std::string> visited = {*own_mounts};
  for (const ProcessStat& process : *tree) {
    const auto user = read_process_link(process.pid, "ns/user");
    const auto mounts = read_process_link(process.pid, "ns/mnt");
    if (!user || !mounts) continue;  // the process has ended
    if (*user != *own_user) return std::vector<PrivateTmpfs>{};
    if (!visited.insert(*mounts).second) continue;
    const Status appended = append_those_of(process.pid, known, found);
    if (!appended && appended.error().errno_value != ENOENT) return failure(appended.error());
  }
  return found;
}

}  // namespace ppmr
