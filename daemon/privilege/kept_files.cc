#include "daemon/privilege/kept_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>

namespace ppmr {
namespace {

constexpr std::string_view kPart = ".part";
constexpr std::string_view kComplete = ".kept";
constexpr size_t kDigits = 8;

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

Status check(int32_t number) {
  if (number >= 0) return {};
  return failure(EINVAL, "a kept checkpoint with a negative number");
}

}  // namespace

std::string kept_file_name(int32_t number, bool complete) {
  return fmt::format("{:08x}{}", number, complete ? kComplete : kPart);
}

Result<UniqueFd> KeptFilesIn::open_kept_directory() {
  if (directory_.empty()) {
    return failure(EPERM, "keep a checkpoint: the target was started without --keep-dir");
  }
  UniqueFd directory(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return system_failure("open", directory_);
  return directory;
}

Result<UniqueFd> KeptFilesIn::create_kept(int32_t number) {
  if (Status valid = check(number); !valid) return failure(valid.error());
  const auto directory = open_kept_directory();
  if (!directory) return failure(directory.error());
  const std::string name = kept_file_name(number, false);
  UniqueFd file(::openat(directory->get(), name.c_str(),
                         O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return system_failure("create", directory_ + "/" + name);
  return file;
}

Result<UniqueFd> KeptFilesIn::publish_kept(int32_t number) {
  if (Status valid = check(number); !valid) return failure(valid.error());
  auto directory = open_kept_directory();
  if (!directory) return directory;
  const std::string part = kept_file_name(number, false);
  const std::string complete = kept_file_name(number, true);
  if (::renameat(directory->get(), part.c_str(), directory->get(), complete.c_str()) != 0) {
    return system_failure("rename", directory_ + "/" + part);
  }
  return directory;
}

Result<UniqueFd> KeptFilesIn::open_kept(int32_t number) {
  if (Status valid = check(number); !valid) return failure(valid.error());
  const auto directory = open_kept_directory();
  if (!directory) return failure(directory.error());
  const std::string name = kept_file_name(number, true);
  UniqueFd file(
      ::openat(directory->get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return system_failure("open", directory_ + "/" + name);
  return file;
}

Result<UniqueFd> KeptFilesIn::remove_kept(int32_t number) {
  if (Status valid = check(number); !valid) return failure(valid.error());
  auto directory = open_kept_directory();
  if (!directory) return directory;
  for (const bool complete : {false, true}) {
    const std::string name = kept_file_name(number, complete);
    if (::unlinkat(directory->get(), name.c_str(), 0) != 0 && errno != ENOENT) {
      return system_failure("remove", directory_ + "/" + name);
    }
  }
  return directory;
}

Result<std::vector<ListedKeptFile>> list_kept_files(const UniqueFd& directory) {
  const int copy = ::fcntl(directory.get(), F_DUPFD_CLOEXEC, 0);
  const std::unique_ptr<DIR, CloseDirectory> open(copy < 0 ? nullptr : ::fdopendir(copy));
  if (!open) {
    const int why = errno;
    if (copy >= 0) ::close(copy);
    return system_failure("list", "the directory of kept checkpoints", why);
  }
  ::rewinddir(open.get());  // the copy begins at the position of the original
  std::vector<ListedKeptFile> files;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(open.get());
    if (entry == nullptr) break;
    const std::string_view name(entry->d_name);
    if (name.size() != kDigits + kPart.size()) continue;
    ListedKeptFile file{0, name.ends_with(kComplete)};
    if (!file.complete && !name.ends_with(kPart)) continue;
    const auto [end, error] = std::from_chars(name.data(), name.data() + kDigits, file.number, 16);
    if (error != std::errc() || end != name.data() + kDigits || file.number < 0) continue;
    if (kept_file_name(file.number, file.complete) == name) files.push_back(file);
  }
  if (errno != 0) return system_failure("list", "the directory of kept checkpoints");
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return files;
}

}  // namespace ppmr
