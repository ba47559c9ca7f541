#include "jobs/agent/record_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/sync_directory.h"
#include "base/whole_file.h"
#include "third_party/spdlog.h"

namespace ppmr {

Result<RecordFiles> RecordFiles::open(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_failure("create", directory);
  }
  if (chmod(directory.c_str(), 0700) != 0) return system_failure("chmod 0700", directory);
  // An agent that could not list its records would have no job and no node.
  if (auto listed = list_directory(directory); !listed) return failure(listed.error());
  return RecordFiles(directory);
}

Status RecordFiles::write(const std::string& name, const nlohmann::json& record) const {
  const std::string path = directory_ + "/" + name + ".json";
  const std::string unfinished = path + ".new";
  Status written = write_whole_file(unfinished, json_text(record), O_TRUNC | O_SYNC, 0600);
  if (!written) return written;
  if (rename(unfinished.c_str(), path.c_str()) != 0) return system_failure("rename to", path);
  return sync_directory(directory_);
}

void RecordFiles::remove(const std::string& name) const {
  unlink((directory_ + "/" + name + ".json").c_str());
}

bool RecordFiles::exists(const std::string& name) const {
  return access((directory_ + "/" + name + ".json").c_str(), F_OK) == 0 || errno != ENOENT;
}

std::vector<nlohmann::json> RecordFiles::read_all() const {
  std::vector<nlohmann::json> records;
  const auto entries = list_directory(directory_);
  if (!entries) {
    spdlog::error("skipped all records: {}", entries.error().message);
    return records;
  }
  for (const auto& entry : *entries) {
    if (entry.path().extension() != ".json") continue;
    const auto text = read_whole_file(entry.path());
    if (!text) {
      spdlog::error("skipped a record: {}", text.error().message);
      continue;
    }
    auto record = nlohmann::json::parse(*text, nullptr, false);
    if (record.is_object()) {
      records.push_back(std::move(record));
    } else {
      spdlog::error("skipped the record {}: not valid JSON", entry.path().string());
    }
  }
  return records;
}

}  // namespace ppmr
