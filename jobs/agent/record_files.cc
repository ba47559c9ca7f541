#include "jobs/agent/record_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/unique_fd.h"
#include "third_party/spdlog.h"

namespace ppmr {

Result<RecordFiles> RecordFiles::open(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("create", directory);
  }
  if (chmod(directory.c_str(), 0700) != 0) return system_failure("chmod 0700", directory);
  return RecordFiles(directory);
}

Status RecordFiles::write(const std::string& name, const nlohmann::json& record) const {
  const std::string path = directory_ + "/" + name + ".json";
  const std::string unfinished = path + ".new";
  const std::string text = json_text(record);
  UniqueFd file(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return system_failure("write", unfinished);
  }
  if (fsync(file.get()) != 0) return system_failure("sync", unfinished);
  file.reset();
  if (rename(unfinished.c_str(), path.c_str()) != 0) return system_failure("rename to", path);
  const UniqueFd directory(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory || fsync(directory.get()) != 0) return system_failure("sync", directory_);
  return {};
}

void RecordFiles::remove(const std::string& name) const {
  unlink((directory_ + "/" + name + ".json").c_str());
}

bool RecordFiles::exists(const std::string& name) const {
  return access((directory_ + "/" + name + ".json").c_str(), F_OK) == 0;
}

std::vector<nlohmann::json> RecordFiles::read_all() const {
  std::vector<nlohmann::json> records;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    auto record = nlohmann::json::parse(file, nullptr, false);
    if (record.is_object()) {
      records.push_back(std::move(record));
    } else {
      spdlog::error("skipped the record {}: not valid JSON", entry.path().string());
    }
  }
  return records;
}

}  // namespace ppmr
