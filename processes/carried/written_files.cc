#include "processes/carried/written_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>

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

}  // namespace

bool has_changed(const WrittenFile& noted, const struct stat& now) {
  if (static_cast<uint64_t>(now.st_size) != noted.size_bytes) return true;
  return noted.modified_ns != 0 && modified_ns_of(now) != noted.modified_ns;
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
           modified_ns_of(status)},
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
  }
  return files;
}

}  // namespace ppmr
