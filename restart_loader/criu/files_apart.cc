#include "restart_loader/criu/files_apart.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

constexpr std::string_view kLine = "ppmr: tmpfs ";
constexpr int kFailed = 1;

// The flags of a mount, for mount_setattr(2).
uint64_t mount_flags_of(unsigned long flags) {
  constexpr std::array<std::pair<unsigned long, uint64_t>, 6> kFlags = {{
      {ST_NOSUID, MOUNT_ATTR_NOSUID},
      {ST_NODEV, MOUNT_ATTR_NODEV},
      {ST_NOEXEC, MOUNT_ATTR_NOEXEC},
      {ST_NODIRATIME, MOUNT_ATTR_NODIRATIME},
      {ST_RDONLY, MOUNT_ATTR_RDONLY},
      {ST_NOATIME, MOUNT_ATTR_NOATIME},
  }};
  uint64_t attributes = 0;
  for (const auto& [flag, attribute] : kFlags) {
    if ((flags & flag) != 0) attributes |= attribute;
  }
  const bool is_strict = (flags & (ST_NOATIME | ST_RELATIME)) == 0;
  return is_strict ? attributes | MOUNT_ATTR_STRICTATIME : attributes;
}

int complain(const Error& error) {
  std::fprintf(stderr, "ppmr tar-of-criu: %s\n", error.message.c_str());
  return kFailed;
}

// Returns the number of a tmpfs that the dump leaves out; nullopt: it is not in the list.
std::optional<unsigned> number_of_device(const std::string& list, dev_t device) {
  std::ifstream file(list);
  for (unsigned long long listed = 0, number = 0; file >> listed >> number;) {
    if (listed == device) return static_cast<unsigned>(number);
  }
  return std::nullopt;
}

}  // namespace

std::optional<unsigned> parse_line_of_tmpfs(std::string_view archive) {
  if (!archive.starts_with(kLine) || !archive.ends_with('\n')) return std::nullopt;
  archive.remove_prefix(kLine.size());
  archive.remove_suffix(1);
  unsigned number = 0;
  const auto [end, error] =
      std::from_chars(archive.data(), archive.data() + archive.size(), number);
  const bool is_number = error == std::errc{} && end == archive.data() + archive.size();
  return is_number ? std::optional(number) : std::nullopt;
}

// Mounts a clone. The supervisor keeps the original, because ppmr may try the restore again.
Status put_filled_tmpfs(const std::string& work_directory, unsigned number,
                        const std::string& directory) {
  const std::string from = work_directory + "/" + kFilledTmpfs + "/" + std::to_string(number);
  struct stat above {};
  struct stat filled {};
  if (stat((from + "/..").c_str(), &above) != 0 || stat(from.c_str(), &filled) != 0) {
    return system_failure("find the files for", directory);
  }
  if (above.st_dev == filled.st_dev) return failure(ENOENT, from + " is not a mount point");
  const UniqueFd mount(
      open_tree(AT_FDCWD, from.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW));
  if (!mount) return system_failure("copy the mount", from);
  struct statvfs made {};
  if (statvfs(directory.c_str(), &made) != 0) return system_failure("inspect", directory);
  mount_attr attributes{};
  attributes.attr_clr = MOUNT_ATTR__ATIME;
  attributes.attr_set = mount_flags_of(made.f_flag);
  attributes.propagation = MS_PRIVATE;
  if (mount_setattr(mount.get(), "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) != 0) {
    return system_failure("set the flags of the mount for", directory);
  }
  if (umount2(directory.c_str(), MNT_DETACH) != 0) return system_failure("unmount", directory);
  if (move_mount(mount.get(), "", AT_FDCWD, directory.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return system_failure("mount the files at", directory);
  }
  return {};
}

int TarOfCriu::run() const {
  const auto has = [this](const char* word) {
    return std::find(arguments.begin(), arguments.end(), word) != arguments.end();
  };
  const auto option = std::find(arguments.begin(), arguments.end(), "--directory");
  if (arguments.end() - option < 2) return kRunTar;
  const std::string& directory = option[1];
  if (has("--create")) {
    struct stat root {};
    if (stat(directory.c_str(), &root) != 0) return kRunTar;
    const auto number = number_of_device(work_directory + "/" + kFilesApart, root.st_dev);
    if (!number) return kRunTar;
    const std::string line = std::string(kLine) + std::to_string(*number) + "\n";
    const bool written =
        write(STDOUT_FILENO, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    if (written) return 0;
    return complain(system_failure("write the image of the tmpfs", directory).value());
  }
  if (!has("--extract")) return kRunTar;
  // Reads without moving the offset, because tar may have to read the same file.
  std::array<char, 64> begin{};
  const ssize_t n = pread(STDIN_FILENO, begin.data(), begin.size(), 0);
  if (n <= 0) return kRunTar;
  const auto number = parse_line_of_tmpfs({begin.data(), static_cast<size_t>(n)});
  if (!number) return kRunTar;
  const Status put = put_filled_tmpfs(work_directory, *number, directory);
  return put ? 0 : complain(put.error());
}

}  // namespace ppmr
