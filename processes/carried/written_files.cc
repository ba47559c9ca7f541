#include "processes/carried/written_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "base/whole_file.h"
#include "processes/carried/carried_state.pb.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr std::string_view kDeleted = " (deleted)";

std::optional<unsigned long> flags_of(pid_t pid, int descriptor) {
  const auto info = read_process_file(pid, fmt::format("fdinfo/{}", descriptor));
  if (!info) return std::nullopt;
  const size_t at = info->find("flags:");
  if (at == std::string::npos) return std::nullopt;
  return std::strtoul(info->c_str() + at + std::string_view("flags:").size(), nullptr, 8);
}

int64_t modified_ns_of(const struct stat& file) {
  return int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
}

void add(const WrittenFile& file, std::map<std::string, WrittenFile>& files) {
  const auto [known, is_new] = files.try_emplace(file.path, file);
  if (!is_new) known->second.is_appended = known->second.is_appended && file.is_appended;
}

// Does not follow a symbolic link in the last component, and does not wait for the reader of a
// pipe.
constexpr int kOpenToCut = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

// Opens the file with the rights of its owner, in a separate thread.
Result<UniqueFd> open_as(const FileOwner& owner, const std::string& path) {
  Result<UniqueFd> file = failure(EPERM, fmt::format("take the rights of user {}", owner.uid));
  std::thread([&] {
    // The system calls change this thread only, unlike the functions of the C library.
    if (syscall(SYS_setgroups, 0, nullptr) != 0) return;
    (void)setfsgid(owner.gid);
    (void)setfsuid(owner.uid);
    // Each function returns the previous ID, so a second call shows whether the first succeeded.
    if (static_cast<gid_t>(setfsgid(owner.gid)) != owner.gid) return;
    if (static_cast<uid_t>(setfsuid(owner.uid)) != owner.uid) return;
    UniqueFd opened(open(path.c_str(), kOpenToCut));
    file = opened ? Result<UniqueFd>(std::move(opened)) : system_failure("open", path);
  }).join();
  return file;
}

// Opens a file of root, or of an unknown owner. The path comes from the kernel of the source, so it
// contained no symbolic link there. If it contains one here, a user may have made the link.
Result<UniqueFd> open_without_links(const std::string& path) {
  open_how how{};
  how.flags = kOpenToCut;
  how.resolve = RESOLVE_NO_SYMLINKS;
  UniqueFd file(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof how)));
  if (!file) return system_failure("open", path);
  return file;
}

}  // namespace

bool has_changed(const WrittenFile& noted, const struct stat& now) {
  if (static_cast<uint64_t>(now.st_size) != noted.size_bytes) return true;
  return noted.modified_ns != 0 && modified_ns_of(now) != noted.modified_ns;
}

Result<UniqueFd> open_to_cut(const WrittenFile& noted) {
  auto file = noted.owner && noted.owner->uid != 0 ? open_as(*noted.owner, noted.path)
                                                   : open_without_links(noted.path);
  if (!file) return file;
  struct stat now {};
  if (fstat(file->get(), &now) != 0) return system_failure("read the attributes of", noted.path);
  const bool is_same = S_ISREG(now.st_mode) && (!noted.owner || noted.owner->uid == now.st_uid);
  if (is_same && static_cast<uint64_t>(now.st_size) > noted.size_bytes) return file;
  return failure(ESTALE,
                 fmt::format("cut {} back to {} bytes: it is not longer than that now, is not "
                             "a regular file, or has another owner",
                             noted.path, noted.size_bytes));
}

Status cut_back(const WrittenFile& noted) {
  const auto file = open_to_cut(noted);
  if (!file) return failure(file.error());
  if (ftruncate(file->get(), static_cast<off_t>(noted.size_bytes)) == 0) return {};
  return system_failure("cut", fmt::format("{} back to {} bytes", noted.path, noted.size_bytes));
}

Result<std::vector<WrittenFile>> read_written_files(const std::vector<ProcessIdentity>& tasks) {
  std::map<std::string, WrittenFile> files;
  for (const ProcessIdentity& task : tasks) {
    const auto descriptors = read_descriptors(task.pid);
    if (!descriptors) return failure(descriptors.error());
    for (const Descriptor& descriptor : *descriptors) {
      if (!descriptor.target.starts_with('/') || descriptor.target.ends_with(kDeleted)) continue;
      const auto flags = flags_of(task.pid, descriptor.number);
      if (!flags || (*flags & O_ACCMODE) == O_RDONLY) continue;
      struct stat status {};
      const std::string link = fmt::format("/proc/{}/fd/{}", task.pid, descriptor.number);
      if (stat(link.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
      add({descriptor.target, static_cast<uint64_t>(status.st_size), (*flags & O_APPEND) != 0,
           modified_ns_of(status), FileOwner{status.st_uid, status.st_gid}},
          files);
    }
  }
  std::vector<WrittenFile> list;
  for (auto& [path, file] : files) list.push_back(std::move(file));
  return list;
}

Status write_written_files(const std::string& path, const std::vector<WrittenFile>& files) {
  carried::WrittenFiles packed;
  for (const WrittenFile& file : files) {
    carried::WrittenFile& added = *packed.add_file();
    added.set_path(file.path);
    added.set_size_bytes(file.size_bytes);
    added.set_is_appended(file.is_appended);
    added.set_modified_ns(file.modified_ns);
    if (!file.owner) continue;
    added.set_uid(file.owner->uid);
    added.set_gid(file.owner->gid);
  }
  std::ofstream file(path, std::ios::binary);
  if (packed.SerializeToOstream(&file) && file.flush()) return {};
  return system_failure("write", path);
}

Result<std::vector<WrittenFile>> load_written_files(const std::string& path) {
  const auto bytes = read_whole_file(path);
  if (!bytes) return failure(bytes.error());
  carried::WrittenFiles packed;
  if (!packed.ParseFromString(*bytes)) return failure(EPROTO, path + ": not a file of ppmr");
  std::vector<WrittenFile> files;
  for (const carried::WrittenFile& file : packed.file()) {
    if (!file.path().starts_with('/') || file.path().find('\0') != std::string::npos) {
      return failure(EPROTO, path + ": it contains a path that is not absolute");
    }
    files.push_back({file.path(), file.size_bytes(), file.is_appended(), file.modified_ns()});
    if (file.has_uid()) files.back().owner = {file.uid(), file.gid()};
  }
  return files;
}

}  // namespace ppmr
