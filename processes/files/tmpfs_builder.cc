#include "processes/files/tmpfs_builder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>

#include "processes/files/built_content.h"
#include "processes/files/deleted_name.h"

namespace ppmr {
namespace {

using namespace file_record;

constexpr const char* kProgram = "files in memory";
// During the build a tmpfs may need more room than the original had, because the builder removes
// dropped files only later.
constexpr const char* kWideBytes = "1125899906842624";
constexpr const char* kWideInodes = "1073741824";
constexpr const char* kCompleteMark = "/complete";

tl::unexpected<Error> senseless(const char* what) {
  return failure(EPROTO, fmt::format("{}: {}", kProgram, what));
}

// `what`: the operation and the tmpfs. The kernel says in `context` which option it refuses.
tl::unexpected<Error> mount_failure(const UniqueFd& context, const std::string& what) {
  const int error = errno;
  std::array<char, 512> said{};
  if (read(context.get(), said.data(), said.size() - 1) < 0) said[0] = '\0';
  const std::string reason(said.data());
  return system_failure(what, reason.empty() ? "" : "(" + reason + ")", error);
}

Result<UniqueFd> mount_tmpfs(const std::string& options, const std::string& path) {
  const UniqueFd context(fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context) return system_failure("mount a tmpfs at", path);
  const auto set = [&](const char* name, const std::string& value) {
    const auto command = value.empty() ? FSCONFIG_SET_FLAG : FSCONFIG_SET_STRING;
    return fsconfig(context.get(), command, name, value.empty() ? nullptr : value.c_str(), 0) == 0;
  };
  bool is_set = set("source", "tmpfs") && set("size", kWideBytes) && set("nr_inodes", kWideInodes);
  for (const auto& [name, value] : options_of_tmpfs(options)) {
    if (name != "size" && name != "nr_inodes") is_set = is_set && set(name.c_str(), value);
  }
  if (!is_set || fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return mount_failure(context, "mount a tmpfs at " + path);
  }
  UniqueFd mounted(fsmount(context.get(), FSMOUNT_CLOEXEC, 0));
  if (!mounted) return mount_failure(context, "mount a tmpfs at " + path);
  if (move_mount(mounted.get(), "", AT_FDCWD, path.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) {
    return system_failure("mount a tmpfs at", path);
  }
  UniqueFd root(openat(mounted.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root) return system_failure("open", path);
  return root;
}

// Gives a built file system the limits of the original.
Status narrow(const std::string& options, const UniqueFd& root, const std::string& path) {
  const UniqueFd context(fspick(root.get(), "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC));
  if (!context) return system_failure("set the limits of the tmpfs at", path);
  struct sysinfo machine {};
  if (sysinfo(&machine) != 0) return system_failure("read", "the size of the memory");
  // The kernel's defaults, in shmem_default_max_blocks() and shmem_default_max_inodes().
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t half_pages = machine.totalram * machine.mem_unit / page / 2;
  std::string size = std::to_string(half_pages * page);
  std::string inodes = std::to_string(half_pages);
  for (const auto& [name, value] : options_of_tmpfs(options)) {
    if (name == "size") size = value;
    if (name == "nr_inodes") inodes = value;
  }
  bool is_set = fsconfig(context.get(), FSCONFIG_SET_STRING, "size", size.c_str(), 0) == 0;
  is_set =
      is_set && fsconfig(context.get(), FSCONFIG_SET_STRING, "nr_inodes", inodes.c_str(), 0) == 0;
  if (!is_set || fsconfig(context.get(), FSCONFIG_CMD_RECONFIGURE, nullptr, nullptr, 0) != 0) {
    return mount_failure(context,
                         fmt::format("set the limits (size={}) of the tmpfs at {}", size, path));
  }
  return {};
}

timespec time_of(int64_t ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t seconds = ns / kSecond - (ns % kSecond < 0 ? 1 : 0);
  return {seconds, ns - seconds * kSecond};
}

// `file`: a directory or a regular file. Sets the times last, because the other calls change them.
Status set_attributes(int file, const FileAttributes& attributes, const std::string& name) {
  if (fchown(file, attributes.uid, attributes.gid) != 0 ||
      fchmod(file, attributes.mode & 07777) != 0) {
    return system_failure("set owner and mode of", name);
  }
  for (const auto& [attribute, value] : attributes.xattrs) {
    if (fsetxattr(file, attribute.c_str(), value.data(), value.size(), 0) != 0) {
      return write_failure("set the extended attributes of", name);
    }
  }
  const timespec times[] = {time_of(attributes.access_ns), time_of(attributes.change_ns)};
  if (futimens(file, times) != 0) return system_failure("set the times of", name);
  return {};
}

// Removes the names of deleted files from the root of a tmpfs.
void remove_names_of_deleted(const std::string& root) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(root.c_str()), closedir);
  if (!entries) return;
  while (const dirent* const entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(kDeletedName)) unlinkat(dirfd(entries.get()), entry->d_name, 0);
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> options_of_tmpfs(const std::string& options) {
  static constexpr std::array kKept = {"size", "nr_inodes", "mode",    "uid",     "gid",
                                       "huge", "mpol",      "inode32", "inode64", "noswap"};
  std::vector<std::pair<std::string, std::string>> kept;
  for (size_t at = 0; at <= options.size();) {
    const size_t end = std::min(options.find(',', at), options.size());
    const std::string word = options.substr(at, end - at);
    const size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(0, equals);
    if (std::find(kKept.begin(), kKept.end(), name) != kKept.end()) {
      kept.emplace_back(name, equals < word.size() ? word.substr(equals + 1) : "");
    }
    at = end + 1;
  }
  return kept;
}

bool is_tmpfs_built(const std::string& directory) {
  return access((directory + kCompleteMark).c_str(), F_OK) == 0;
}

void remove_built_tmpfs(const std::string& directory) {
  unlink((directory + kCompleteMark).c_str());
  for (size_t i = 0; i < kFileTmpfsMax; ++i) {
    const std::string path = directory + "/" + std::to_string(i);
    remove_names_of_deleted(path);
    // A second supervisor may have mounted over the first one's mount.
    while (umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0) {
    }
    rmdir(path.c_str());
  }
  rmdir(directory.c_str());
}

Status TmpfsBuilder::apply(const FileRecord& record) {
  if (is_complete_) return senseless("a record after the last part");
  const bool begins = std::holds_alternative<Part>(record);
  if (begins == in_part_) return senseless("a part begins or ends at the wrong place");
  return std::visit([this](const auto& value) { return on(value); }, record);
}

Status TmpfsBuilder::on(const Part& part) {
  if (part.number != parts_) return senseless("a part is missing");
  in_part_ = true;
  return {};
}

Status TmpfsBuilder::on(const End& end) {
  if (!levels_.empty() && end.is_last) return senseless("a directory has no end");
  in_part_ = false;
  ++parts_;
  return end.is_last ? finish() : Status{};
}

Status TmpfsBuilder::on(const Tmpfs& tmpfs) {
  if (!may_mount_) {
    return failure(EPERM,
                   "the tree has files in memory of its own mount namespace, which only a target "
                   "with --allow-root-restart accepts");
  }
  if (built_.contains(tmpfs.tmpfs)) return senseless("a file system begins twice");
  if (Status made = make_directory(); !made) return made;
  const std::string path = directory_ + "/" + std::to_string(tmpfs.tmpfs);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return system_failure("create", path);
  auto root = mount_tmpfs(tmpfs.options, path);
  if (!root) return failure(root.error());
  Built built{.path = path, .options = tmpfs.options, .root = std::move(*root)};
  std::array<uint64_t, 2> random{};
  if (getrandom(random.data(), sizeof(random), 0) != sizeof(random)) {
    return system_failure("get random bytes for", path);
  }
  // No file of the processes has this name.
  built.unnamed_name = fmt::format(".ppmr-{:016x}{:016x}", random[0], random[1]);
  const int root_fd = built.root.get();
  if (mkdirat(root_fd, built.unnamed_name.c_str(), 0700) != 0) {
    return write_failure("create the directory of unfinished files in the tmpfs at", path);
  }
  built.unnamed = UniqueFd(
      openat(root_fd, built.unnamed_name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!built.unnamed) {
    return system_failure("open the directory of unfinished files in the tmpfs at", path);
  }
  built_.emplace(tmpfs.tmpfs, std::move(built));
  return {};
}

Status TmpfsBuilder::make_directory() const {
  if (mkdir(directory_.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return system_failure("create", directory_);
}

Result<int> TmpfsBuilder::open_unnamed(uint32_t tmpfs, uint64_t number) {
  const auto built = built_.find(tmpfs);
  if (built == built_.end() || built->second.is_named) {
    return senseless("bytes of a file system that does not exist");
  }
  if (open_ && opened_ == std::pair{tmpfs, number}) return open_.get();
  open_ = UniqueFd(openat(built->second.unnamed.get(), std::to_string(number).c_str(),
                          O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!open_) {
    return write_failure("create an unfinished file in the tmpfs at", built->second.path);
  }
  built->second.files.insert(number);
  opened_ = {tmpfs, number};
  return open_.get();
}

Status TmpfsBuilder::on(const Segment& segment) { return segments_.on(segment); }

template <typename Content>
Status TmpfsBuilder::on_content(const Content& content) {
  if (content.tmpfs == kSharedMemory) return segments_.on(content);
  const auto file = open_unnamed(content.tmpfs, content.file);
  return file ? apply_content(content, *file) : failure(file.error());
}

Status TmpfsBuilder::on(const Size& size) { return on_content(size); }
Status TmpfsBuilder::on(const Data& data) { return on_content(data); }
Status TmpfsBuilder::on(const Hole& hole) { return on_content(hole); }

Status TmpfsBuilder::on(const Drop& drop) {
  if (drop.tmpfs == kSharedMemory) return segments_.on(drop);
  const auto built = built_.find(drop.tmpfs);
  if (built == built_.end()) return senseless("a file of a file system that does not exist");
  if (built->second.files.erase(drop.file) == 0) return {};  // the file never had content
  if (opened_ == std::pair{drop.tmpfs, drop.file}) open_.reset();
  if (unlinkat(built->second.unnamed.get(), std::to_string(drop.file).c_str(), 0) != 0) {
    return system_failure("remove a dropped file from the tmpfs at", built->second.path);
  }
  return {};
}

Status TmpfsBuilder::on(const Tree& tree) {
  const auto built = built_.find(tree.tmpfs);
  if (built == built_.end() || built->second.is_named || !levels_.empty()) {
    return senseless("names of a file system at the wrong place");
  }
  open_.reset();
  naming_ = &built->second;
  naming_->is_named = true;
  first_names_.clear();
  path_.clear();
  UniqueFd root(fcntl(naming_->root.get(), F_DUPFD_CLOEXEC, 0));
  if (!root) return system_failure("duplicate the descriptor of the tmpfs at", naming_->path);
  levels_.push_back({std::move(root), tree.root});
  return {};
}

Status TmpfsBuilder::on(const Entry& entry) {
  if (levels_.empty()) return senseless("a name in no directory");
  const int directory = levels_.back().directory.get();
  const char* const name = entry.name.c_str();
  const mode_t mode = entry.attributes.mode;
  if (S_ISREG(mode)) return name_file(entry);
  if (S_ISDIR(mode)) {
    if (levels_.size() > kFileDepthMax + 1) return senseless("too many nested directories");
    if (mkdirat(directory, name, 0700) != 0) {
      return write_failure("create the directory", full_path(entry.name));
    }
    UniqueFd below(openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!below) return system_failure("open the directory", full_path(entry.name));
    levels_.push_back({std::move(below), entry.attributes});
    path_.push_back(entry.name);
    return {};
  }
  const int made = S_ISLNK(mode) ? symlinkat(entry.target.c_str(), directory, name)
                                 : mknodat(directory, name, mode & ~07777U, entry.device);
  if (made != 0) return write_failure("create", full_path(entry.name));
  if (fchownat(directory, name, entry.attributes.uid, entry.attributes.gid, AT_SYMLINK_NOFOLLOW) !=
      0) {
    return system_failure("set the owner of", full_path(entry.name));
  }
  // No other process has access to the directory, so the name still refers to the special file.
  if (!S_ISLNK(mode) && fchmodat(directory, name, mode & 07777, 0) != 0) {
    return system_failure("set the mode of", full_path(entry.name));
  }
  const timespec times[] = {time_of(entry.attributes.access_ns),
                            time_of(entry.attributes.change_ns)};
  if (utimensat(directory, name, times, AT_SYMLINK_NOFOLLOW) != 0) {
    return system_failure("set the times of", full_path(entry.name));
  }
  first_names_.emplace(entry.file, path_in_tmpfs(entry.name));
  return {};
}

std::string TmpfsBuilder::path_in_tmpfs(const std::string& name) const {
  std::string path;
  for (const std::string& component : path_) path += component + "/";
  return path + name;
}

std::string TmpfsBuilder::full_path(const std::string& name) const {
  return naming_->path + "/" + path_in_tmpfs(name);
}

Status TmpfsBuilder::name_file(const Entry& entry) {
  const int directory = levels_.back().directory.get();
  const char* const name = entry.name.c_str();
  int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC;
  if (naming_->files.erase(entry.file) == 1) {
    if (renameat2(naming_->unnamed.get(), std::to_string(entry.file).c_str(), directory, name,
                  RENAME_NOREPLACE) != 0) {
      return write_failure("name the file", full_path(entry.name));
    }
  } else {
    flags |= O_CREAT | O_EXCL;
  }
  const UniqueFd file(openat(directory, name, flags, 0600));
  if (!file) return write_failure("create", full_path(entry.name));
  if (ftruncate(file.get(), static_cast<off_t>(entry.size_bytes)) != 0) {
    return write_failure("set the size of", full_path(entry.name));
  }
  const Status set = set_attributes(file.get(), entry.attributes, full_path(entry.name));
  if (!set) return set;
  first_names_.emplace(entry.file, path_in_tmpfs(entry.name));
  return {};
}

// The first name is a path below the root that this object has built: it contains no symbolic
// links.
Status TmpfsBuilder::on(const Link& link) {
  if (levels_.empty()) return senseless("a name in no directory");
  const auto first = first_names_.find(link.file);
  if (first == first_names_.end()) return senseless("a further name of a file that has none");
  const Level& level = levels_.back();
  if (linkat(naming_->root.get(), first->second.c_str(), level.directory.get(), link.name.c_str(),
             0) != 0) {
    return write_failure("create the link", full_path(link.name));
  }
  return {};
}

Status TmpfsBuilder::on(const Leave& /*leave*/) {
  if (levels_.empty()) return senseless("the end of no directory");
  if (levels_.size() == 1) {
    for (const uint64_t file : naming_->files) {
      if (unlinkat(naming_->unnamed.get(), std::to_string(file).c_str(), 0) != 0) {
        return system_failure("remove an unnamed file from the tmpfs at", naming_->path);
      }
    }
    naming_->files.clear();
    naming_->unnamed.reset();
    const char* const unnamed = naming_->unnamed_name.c_str();
    if (unlinkat(naming_->root.get(), unnamed, AT_REMOVEDIR) != 0) {
      return system_failure("remove the directory of unfinished files from the tmpfs at",
                            naming_->path);
    }
  }
  const Level& level = levels_.back();
  const Status set = set_attributes(level.directory.get(), level.attributes, full_path(""));
  if (!set) return set;
  levels_.pop_back();
  if (!path_.empty()) path_.pop_back();
  return {};
}

Status TmpfsBuilder::finish() {
  open_.reset();
  for (const auto& [number, built] : built_) {
    if (!built.is_named) return senseless("a file system has no names");
    if (Status narrowed = narrow(built.options, built.root, built.path); !narrowed) return narrowed;
  }
  if (Status made = make_directory(); !made) return made;
  const std::string mark = directory_ + kCompleteMark;
  const UniqueFd marked(open(mark.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!marked) return system_failure("create", mark);
  is_complete_ = true;
  return {};
}

}  // namespace ppmr
