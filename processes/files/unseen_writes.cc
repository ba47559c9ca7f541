#include "processes/files/unseen_writes.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/fanotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <string>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr size_t kEventBytes = size_t{64} << 10;

dev_t device_in(const std::string& text) {
  const size_t colon = text.find(':');
  unsigned major_number = 0;
  unsigned minor_number = 0;
  if (colon == std::string::npos) return 0;
  std::from_chars(text.data(), text.data() + colon, major_number, 16);
  std::from_chars(text.data() + colon + 1, text.data() + text.size(), minor_number, 16);
  return makedev(major_number, minor_number);
}

// Also adds mappings without the right to write, because mprotect(2) may add this right. Returns
// false if mappings may be missing, for example because this process can open no more files.
bool add_mapped(pid_t pid, FileSet& written) {
  const auto mappings = read_mappings(pid);
  if (!mappings) return mappings.error().errno_value == ESRCH;  // the process has ended
  for (const Mapping& mapping : *mappings) {
    if (mapping.shared && mapping.inode != 0) {
      written.emplace(device_in(mapping.device), mapping.inode);
    }
  }
  return true;
}

// Returns true if this cannot be known.
bool may_be_open_for_writing(pid_t pid, const char* descriptor) {
  const auto info = read_process_file(pid, fmt::format("fdinfo/{}", descriptor));
  if (!info) return info.error().errno_value != ESRCH;  // ESRCH: the descriptor was closed
  const size_t at = info->find("flags:");
  if (at == std::string::npos) return false;
  const unsigned long flags = std::strtoul(info->c_str() + at + 6, nullptr, 8);
  return (flags & O_ACCMODE) != O_RDONLY;
}

// Returns false if files may be missing.
bool add_open(pid_t pid, const std::set<dev_t>& devices, FileSet& written) {
  const std::string path = fmt::format("/proc/{}/fd", pid);
  const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir(path.c_str()), closedir);
  if (!descriptors) return errno == ENOENT || errno == ESRCH;  // the process has ended
  for (;;) {
    errno = 0;
    const dirent* const descriptor = readdir(descriptors.get());
    if (descriptor == nullptr) return errno == 0 || errno == ESRCH;
    struct stat status {};
    if (fstatat(dirfd(descriptors.get()), descriptor->d_name, &status, 0) != 0) continue;
    if (!S_ISREG(status.st_mode) || !devices.contains(status.st_dev)) continue;
    if (may_be_open_for_writing(pid, descriptor->d_name)) {
      written.emplace(status.st_dev, status.st_ino);
    }
  }
}

}  // namespace

UnseenWrites::UnseenWrites(const std::vector<PrivateTmpfs>& all) {
  if (all.empty()) return;
  for (const PrivateTmpfs& tmpfs : all) devices_.insert(tmpfs.device);
  UniqueFd watch(fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK,
                               O_RDONLY | O_LARGEFILE | O_CLOEXEC));
  if (!watch) return;
  for (const PrivateTmpfs& tmpfs : all) {
    if (fanotify_mark(watch.get(), FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CLOSE_WRITE,
                      tmpfs.root.get(), ".") != 0) {
      return;
    }
  }
  closed_ = std::move(watch);
}

bool UnseenWrites::take_closed(FileSet& written) {
  if (!closed_) return false;
  bool is_complete = true;
  alignas(fanotify_event_metadata) std::array<char, kEventBytes> buffer;
  for (;;) {
    ssize_t length = read(closed_.get(), buffer.data(), buffer.size());
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && errno == EAGAIN) return is_complete;
    if (length <= 0) return false;
    const auto* event = reinterpret_cast<const fanotify_event_metadata*>(buffer.data());
    for (; FAN_EVENT_OK(event, length); event = FAN_EVENT_NEXT(event, length)) {
      const UniqueFd file(event->fd);
      struct stat status {};
      // An event without a descriptor means that the kernel's queue was too short.
      if (!file || fstat(file.get(), &status) != 0) {
        is_complete = false;
      } else {
        written.emplace(status.st_dev, status.st_ino);
      }
    }
  }
}

Result<std::optional<FileSet>> UnseenWrites::take(pid_t root) {
  FileSet written;
  // A file that a process closes after this call is open when add_open() looks, or the next call
  // has it.
  bool is_complete = take_closed(written);
  const auto tree = read_tree(root);
  if (!tree) return failure(tree.error());
  for (const ProcessStat& process : *tree) {
    is_complete = add_mapped(process.pid, written) && is_complete;
    is_complete = add_open(process.pid, devices_, written) && is_complete;
  }
  if (!is_complete) return std::optional<FileSet>();
  return std::optional<FileSet>(std::move(written));
}

}  // namespace ppmr
