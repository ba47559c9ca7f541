#include "migration/target/rehearsal_room.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "base/unique_fd.h"
#include "restart_loader/images/tree_images.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;

// Each entry costs a mount, some 10 us.
constexpr size_t kEntriesMax = 4096;

// Shows an entry of the directory in the shield. Leaves out sockets: no process may connect to
// them, and CRIU would remove them.
Status show_entry(const fs::path& entry, const fs::path& shown) {
  struct stat at {};
  if (lstat(entry.c_str(), &at) != 0) return {};  // it has been removed meanwhile
  if (S_ISSOCK(at.st_mode)) return {};
  std::error_code error;
  if (S_ISLNK(at.st_mode)) {
    fs::copy_symlink(entry, shown, error);
    return error ? system_failure("copy the link " + entry.string() + " to", shown.c_str(),
                                  error.value())
                 : Status{};
  }
  if (S_ISDIR(at.st_mode)) {
    if (mkdir(shown.c_str(), 0700) != 0) return system_failure("create", shown.c_str());
  } else if (!UniqueFd(open(shown.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600))) {
    return system_failure("create", shown.c_str());
  }
  if (mount(entry.c_str(), shown.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0) return {};
  return errno == ENOENT ? Status{} : system_failure("show in a rehearsal", entry.c_str());
}

// Returns the directories in which the sockets are bound, each once.
Result<std::vector<std::string>> socket_directories(const std::string& images,
                                                    const ImageBundle* bundle) {
  const auto tree = read_tree_images(images, bundle);
  if (!tree) return failure(tree.error());
  std::set<std::string> directories;
  for (const auto& [id, file] : tree->files) {
    if (!file.has_usk()) continue;
    const std::string name = file.usk().name().substr(0, file.usk().name().find('\0'));
    const fs::path path = fs::path(file.usk().name_dir()) / name;
    if (!name.empty() && path.is_absolute()) directories.insert(path.parent_path());
  }
  return std::vector<std::string>(directories.begin(), directories.end());
}

Status shield_directory(const std::string& directory, const std::string& shield) {
  struct stat at {};
  if (stat(directory.c_str(), &at) != 0) return {};  // CRIU reports it, as in a move
  if (chown(shield.c_str(), at.st_uid, at.st_gid) != 0 ||
      chmod(shield.c_str(), at.st_mode & 07777) != 0) {
    return system_failure("copy owner and mode of " + directory + " to", shield);
  }
  size_t count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (++count > kEntriesMax) {
      return failure(E2BIG, fmt::format("a process has a socket in {}, which has more than {} "
                                        "entries: that cannot be rehearsed",
                                        directory, kEntriesMax));
    }
    const Status shown = show_entry(entry->path(), fs::path(shield) / entry->path().filename());
    if (!shown) return shown;
  }
  if (error) return system_failure("list", directory, error.value());
  if (mount(shield.c_str(), directory.c_str(), nullptr, MS_BIND | MS_REC, nullptr) == 0) return {};
  return system_failure("hide in a rehearsal", directory);
}

}  // namespace

Status shield_socket_directories(const std::string& images, const ImageBundle* bundle,
                                 const std::string& work_directory) {
  const auto directories = socket_directories(images, bundle);
  if (!directories) return failure(directories.error());
  if (directories->empty()) return {};
  const std::string room = work_directory + "/room";
  if (mkdir(room.c_str(), 0700) != 0 && errno != EEXIST) return system_failure("create", room);
  if (mount("none", room.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700") != 0) {
    return system_failure("mount a tmpfs at", room);
  }
  for (size_t i = 0; i < directories->size(); ++i) {
    const std::string shield = room + "/" + std::to_string(i);
    if (mkdir(shield.c_str(), 0700) != 0) return system_failure("create", shield);
    if (Status hidden = shield_directory((*directories)[i], shield); !hidden) return hidden;
  }
  return {};
}

}  // namespace ppmr
