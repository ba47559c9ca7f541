// Brings the kept checkpoints back when the daemon starts.
#include <algorithm>
#include <set>

#include "fuse_target/keep/keeper.h"
#include "third_party/spdlog.h"

namespace ppmr {

Status Keeper::load() {
  const auto directory = files_.open_kept_directory();
  if (!directory) return failure(directory.error());
  auto listed = list_kept_files(*directory);
  if (!listed) {
    return failure(listed.error().errno_value, options_.directory + ": " + listed.error().message);
  }
  (void)check_space(0);  // sets free_bytes in the report
  for (const ListedKeptFile& file : *listed) last_number_ = std::max(last_number_, file.number);
  // Load the newest file first: of two files with the same name, the later one is valid.
  std::reverse(listed->begin(), listed->end());
  std::set<int32_t> complete;
  for (const ListedKeptFile& file : *listed) {
    if (file.complete) complete.insert(file.number);
  }
  for (const ListedKeptFile& file : *listed) {
    if (!file.complete) {
      remove_half_written(file.number, complete.contains(file.number));
    } else if (Status loaded = load_one(file.number); !loaded) {
      return loaded;
    }
  }
  MutexLock lock(mutex_);
  if (!entries_.empty()) {
    spdlog::info("{} kept checkpoints are back from {}", entries_.size(), options_.directory);
  }
  return {};
}

// A removal removes both files of a number. This program does not leave both; a person who copies
// files back may.
void Keeper::remove_half_written(int32_t number, bool is_also_complete) {
  if (is_also_complete) {
    spdlog::warn("left {}, which is not completely written, because {} is there too: remove it",
                 path_of(number, false), path_of(number, true));
    return;
  }
  if (const auto gone = files_.remove_kept(number); !gone) {
    spdlog::error("{} is not completely written, and cannot be removed: {}",
                  path_of(number, false), gone.error().message);
    return;
  }
  spdlog::info("removed {}, which was not completely written", path_of(number, false));
}

Status Keeper::load_one(int32_t number) {
  auto file = files_.open_kept(number);
  if (!file) {
    unreadable(number, "", file.error().message);
    return {};
  }
  const std::string name = KeptFile::name_in_header(*file);
  auto opened = KeptFile::open(std::move(*file), (*keys_)->all(), path_of(number, true));
  if (!opened) {
    unreadable(number, name, opened.error().message);
    return {};
  }
  Entry entry{.number = number,
              .name = opened->listing.name(),
              .sealed_ns = opened->listing.sealed_ns,
              .file = std::move(opened->file)};
  const auto top = tree_.restore(std::move(opened->listing));
  if (!top) {
    unreadable(number, name, top.error().message);
    return {};
  }
  MutexLock lock(mutex_);
  entries_.emplace(*top, std::move(entry));
  return {};
}

void Keeper::unreadable(int32_t number, const std::string& name, const std::string& reason) {
  spdlog::error("{}{} is not in the mount: {}", path_of(number, true),
                name.empty() ? "" : " (checkpoint '" + name + "')", reason);
  MutexLock lock(mutex_);
  report_.unreadable.push_back({kept_file_name(number, true), name, reason});
}

}  // namespace ppmr
