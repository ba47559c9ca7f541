#include "migration/settle/abandoned_checkpoints.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/whole_file.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "migration/target/restore_remains.h"
#include "mount/mount_table.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kPatience{5000};
constexpr size_t kIdInName = 8;  // characters of the ID in the name of a checkpoint

std::vector<std::string> checkpoints_of(const std::string& mountpoint) {
  const auto mount = find_mount(mountpoint);
  if (!mount || !mount->remainder.empty()) return {};
  const auto status = call(mount->mount.source, to_request(request::Status{}), kPatience);
  std::vector<std::string> names;
  if (!status) return names;
  for (const auto& entry : status->value("checkpoints", nlohmann::json::array())) {
    if (entry.is_object()) names.push_back(entry.value("name", ""));
  }
  return names;
}

}  // namespace

std::set<std::string> unrelated_records(const std::vector<std::string>& records,
                                        const std::vector<std::string>& checkpoints) {
  std::set<std::string> unrelated;
  for (const std::string& record : records) {
    const std::string part = "-" + record.substr(0, kIdInName);
    const bool found =
        std::any_of(checkpoints.begin(), checkpoints.end(),
                    [&](const std::string& name) { return name.find(part) != std::string::npos; });
    if (!found) unrelated.insert(record);
  }
  return unrelated;
}

namespace {

void remove_at_target(const RecordStore& store, const OwnershipRecord& record) {
  if (record.has_losses()) return;
  for (size_t i = 0; i < record.trees.size(); ++i) {
    if (is_alive(record.trees[i].supervisor)) continue;
    (void)remove_checkpoint(record, record.trees[i]);
    remove_built_files(store.path_of(record.id, MigrationRole::kTarget), i);
  }
}

// The names of all checkpoints of a tree begin with the name of the checkpoint of its images.
void remove_at_source(const OwnershipRecord& record, const std::vector<std::string>& checkpoints) {
  if (is_alive(record.coordinator)) return;
  for (const TreeRecord& tree : record.trees) {
    for (const std::string& name : checkpoints) {
      if (tree.checkpoint.empty() || !name.starts_with(tree.checkpoint)) continue;
      std::error_code ignored;
      std::filesystem::remove_all(record.mountpoint + "/" + name, ignored);
    }
  }
}

}  // namespace

void remove_abandoned_checkpoints(const RecordStore& store, MigrationRole role,
                                  const std::string& mountpoint) {
  const std::vector<std::string> checkpoints = checkpoints_of(mountpoint);
  if (checkpoints.empty()) return;
  std::vector<std::string> names;
  for (const auto& entry : list_directory(store.directory()).value_or(DirectoryEntries())) {
    names.push_back(entry.path().filename());
  }
  const auto records = store.list(nullptr, unrelated_records(names, checkpoints));
  if (!records) return;
  for (const OwnershipRecord& record : *records) {
    if (record.role != role || record.mountpoint != mountpoint || !is_over(record.state()))
      continue;
    role == MigrationRole::kTarget ? remove_at_target(store, record)
                                   : remove_at_source(record, checkpoints);
  }
}

}  // namespace ppmr
