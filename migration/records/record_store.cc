#include "migration/records/record_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_set>

#include "base/clock.h"
#include "base/json_text.h"
#include "base/parse_json.h"
#include "base/sync_directory.h"
#include "base/whole_file.h"
#include "migration/records/pause_point.h"

namespace ppmr {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The interval at which wait() looks for changes without an inotify event, such as another node's
// changes on a network file system.
constexpr milliseconds kPollInterval{250};
constexpr size_t kRecordMaxBytes = size_t{16} << 20;
// The suffix of the file that marks a record as settled, see list_unsettled().
constexpr std::string_view kSettledMark = ".settled";

Status make_private_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return system_failure("create the directory", path);
  return {};
}

// Returns the number in "17.json"; 0 for any other name.
uint64_t version_of(const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == 0 || dot == std::string::npos || dot > 18 || name.substr(dot) != ".json" ||
      name.find_first_not_of("0123456789") != dot) {
    return 0;
  }
  return std::stoull(name);
}

// Returns the number of the latest version; 0 if there is none. Errors: those of list_directory(),
// except ENOENT.
Result<uint64_t> latest_version(const std::string& path) {
  const auto entries = list_directory(path);
  if (!entries && entries.error().errno_value == ENOENT) return 0;
  if (!entries) return failure(entries.error());
  uint64_t latest = 0;
  for (const auto& entry : *entries) {
    latest = std::max(latest, version_of(entry.path().filename()));
  }
  return latest;
}

constexpr std::string_view kAside = "unreadable-";

// Where an unreadable record is set aside; random digits follow. `path`: of the record.
std::string prefix_of_aside(const fs::path& path) {
  return path.parent_path() / (std::string(kAside) + path.filename().string() + "-");
}

Error set_aside_error(const std::string& path) {
  return {EPROTO, "a record of a migration cannot be read, and is set aside in " + path +
                      ": when none of its processes is left on this node, remove that directory"};
}

// Checks that the record is not set aside. `path`: of the record. Errors: EPROTO.
Status check_not_set_aside(const fs::path& path) {
  const auto entries = list_directory(path.parent_path());
  if (!entries) return failure(entries.error());
  for (const auto& entry : *entries) {
    if (entry.path().string().starts_with(prefix_of_aside(path))) {
      return failure(set_aside_error(entry.path()));
    }
  }
  return {};
}

// Returns whether a directory of this name is a record: "ID.source", "ID.target".
bool is_record(const std::string& name, MigrationRole role) {
  constexpr size_t kIdLength = 32;
  return name.size() > kIdLength && is_migration_id(name.substr(0, kIdLength)) &&
         name[kIdLength] == '.' && name.substr(kIdLength + 1) == to_string(role);
}

// Reads a version of the record in directory `path`. Errors: EIO; those of parse_record().
Result<OwnershipRecord> read_version(const std::string& path, uint64_t version) {
  const std::string name = path + "/" + std::to_string(version) + ".json";
  const auto text = read_whole_file(name);
  // EIO even if the file is missing: ENOENT would mean that there is no record.
  if (!text) return failure(EIO, "read record: " + text.error().message);
  if (text->size() > kRecordMaxBytes) {
    return failure(EIO, "read record " + name + ": it is longer than any that ppmr writes");
  }
  auto record = parse_record(parse_json(*text));
  if (!record) {
    return failure(record.error().errno_value,
                   "read record " + name + ": " + record.error().message);
  }
  record->version = version;
  return record;
}

// Returns the latest version that can be read. nullopt: there is none.
std::optional<OwnershipRecord> read_any_version(const std::string& path) {
  std::set<uint64_t, std::greater<>> versions;
  for (const auto& entry : list_directory(path).value_or(DirectoryEntries())) {
    versions.insert(version_of(entry.path().filename()));
  }
  versions.erase(0);
  for (const uint64_t version : versions) {
    if (auto record = read_version(path, version)) return std::move(*record);
  }
  return std::nullopt;
}

void sort_by_age(std::vector<OwnershipRecord>& records) {
  std::sort(records.begin(), records.end(), [](const auto& left, const auto& right) {
    return left.history().front().at_ns < right.history().front().at_ns;
  });
}

// Checks whether `after` is the same record and has taken at most one allowed step. A change could
// have put another record in its place. A second step would hide the state between the two from
// readers, which see versions only.
Status check_follows(const OwnershipRecord& before, const OwnershipRecord& after) {
  auto expected = before.history();
  const bool moved = after.history().size() > expected.size();
  if (moved) expected.push_back(after.history().back());
  if (after.id == before.id && after.role == before.role && after.history() == expected &&
      (!moved || may_change(before.role, before.state(), after.state()))) {
    return {};
  }
  return failure(EPERM, "migration " + before.id + " is " + to_string(before.state()) + " at the " +
                            to_string(before.role) + "; a change to migration " + after.id + ", " +
                            to_string(after.state()) + " at the " + to_string(after.role) +
                            ", is not a step of the protocol");
}

}  // namespace

Result<RecordStore> RecordStore::open(const std::string& directory) {
  if (directory.empty() || directory[0] != '/') {
    return failure(EINVAL, "state directory '" + directory + "': give an absolute path");
  }
  std::error_code error;
  fs::create_directories(fs::path(directory).parent_path(), error);
  if (auto made = make_private_directory(directory); !made) return failure(made.error());
  if (Status checked = check(directory); !checked) return failure(checked.error());
  return RecordStore(directory);
}

Status RecordStore::check(const std::string& directory) {
  struct stat info;
  if (stat(directory.c_str(), &info) != 0) {
    if (errno == ENOENT) return {};
    return system_failure("read the attributes of", directory);
  }
  if (!S_ISDIR(info.st_mode)) return system_failure("use state directory", directory, ENOTDIR);
  if ((info.st_mode & 0022) != 0 || info.st_uid != geteuid()) {
    return failure(EPERM,
                   "state directory " + directory +
                       ": other users may write to it, but its records decide where processes run: "
                       "chown it to the user that runs ppmr, and chmod it to 700");
  }
  return {};
}

// The time of a contact is the modification time of the record's directory.
void RecordStore::note_contact(const std::string& id, MigrationRole role) const {
  (void)utimensat(AT_FDCWD, path_of(id, role).c_str(), nullptr, 0);
}

std::string RecordStore::path_of(const std::string& id, MigrationRole role) const {
  return directory_ + "/" + name_of(id, role);
}

std::string RecordStore::name_of(const std::string& id, MigrationRole role) {
  return id + "." + to_string(role);
}

std::string RecordStore::work_path(const std::string& id, MigrationRole role, size_t tree) const {
  return path_of(id, role) + "/work-" + std::to_string(tree);
}

Result<std::string> RecordStore::make_work_directory(const std::string& id, MigrationRole role,
                                                     size_t tree) const {
  const std::string path = work_path(id, role, tree);
  if (auto made = make_private_directory(path); !made) return failure(made.error());
  return path;
}

Result<OwnershipRecord> RecordStore::create(OwnershipRecord record) const {
  record.begin(realtime_ns());
  return write_first(std::move(record));
}

Result<OwnershipRecord> RecordStore::create_aborted(OwnershipRecord record) const {
  record.begin(realtime_ns());
  if (Status aborted = record.move_to(MigrationState::kAborted); !aborted) {
    return failure(aborted.error());
  }
  record.peer_notified = record.tasks_resumed = true;
  return write_first(std::move(record));
}

// The process that writes the first version has created the record. The one that made the directory
// may have died before it wrote a version.
Result<OwnershipRecord> RecordStore::write_first(OwnershipRecord record) const {
  const std::string path = path_of(record.id, record.role);
  if (Status known = check_not_set_aside(path); !known) return failure(known.error());
  if (auto made = make_private_directory(path); !made) return failure(made.error());
  record.version = 1;
  if (auto written = write(path, record); !written) {
    rmdir(path.c_str());  // fails if another creator is at work
    return failure(written.error());
  }
  if (auto synced = sync_directory(directory_); !synced) return failure(synced.error());
  pause_point(path, record);
  return record;
}

Status RecordStore::write(const std::string& path, OwnershipRecord& record) const {
  const std::string temporary = path + "/new-" + random_migration_id();
  const std::string final_name = path + "/" + std::to_string(record.version) + ".json";
  Status written = write_whole_file(temporary, json_text(record) + "\n", O_EXCL | O_SYNC, 0600);
  if (written && link(temporary.c_str(), final_name.c_str()) != 0) {
    written = system_failure("write record", final_name);
  }
  unlink(temporary.c_str());
  if (!written) return written;
  return sync_directory(path);
}

Result<OwnershipRecord> RecordStore::read(const std::string& id, MigrationRole role) const {
  if (!is_migration_id(id)) return failure(EINVAL, "'" + id + "' is not the id of a migration");
  auto record = read_directory(path_of(id, role));
  if (record || record.error().errno_value != ENOENT) return record;
  if (Status known = check_not_set_aside(path_of(id, role)); !known) return failure(known.error());
  return record;
}

// Looks for records that are set aside after it has looked at the others, so it does not miss one
// that is set aside meanwhile.
Result<std::vector<UnreadableRecord>> RecordStore::list_unreadable(MigrationRole role) const {
  std::vector<UnreadableRecord> found;
  const auto in_place = list_directory(directory_);
  if (!in_place) return failure(in_place.error());
  for (const auto& entry : *in_place) {
    const std::string path = entry.path();
    if (!is_record(entry.path().filename(), role)) continue;
    const auto record = read_directory(path);
    if (record || record.error().errno_value == ENOENT) continue;
    std::error_code failed;
    const bool is_gone = !fs::exists(path, failed) && !failed;  // pruned, or set aside
    if (is_gone) continue;
    Error error = record.error();
    if (error.errno_value == EPROTO) error.message += "; ppmr migrate --recover sets it aside";
    found.push_back({std::move(error), read_any_version(path)});
  }
  const auto aside = list_directory(directory_);
  if (!aside) return failure(aside.error());
  for (const auto& entry : *aside) {
    const std::string path = entry.path();
    const std::string name = entry.path().filename();
    if (!name.starts_with(kAside)) continue;
    const std::string record = name.substr(kAside.size());
    if (!is_record(record.substr(0, record.rfind('-')), role)) continue;
    found.push_back({set_aside_error(path), read_any_version(path)});
  }
  return found;
}

Result<OwnershipRecord> RecordStore::read_directory(const std::string& path,
                                                    Reading reading) const {
  const auto version = latest_version(path);
  if (!version) {
    return failure(version.error().errno_value,
                   "read record " + path + ": " + version.error().message);
  }
  if (*version == 0) return failure(ENOENT, "no record " + path);
  // Makes this version durable: the process that wrote it may not have synced the directory yet.
  if (reading == Reading::kSynced) {
    if (auto synced = sync_directory(path); !synced) return failure(synced.error());
  }
  return read_version(path, *version);
}

Result<std::vector<std::string>> RecordStore::record_directories() const {
  const auto entries = list_directory(directory_);
  if (!entries) return failure(entries.error());
  std::vector<std::string> paths;
  for (const auto& entry : *entries) {
    const std::string name = entry.path().filename();
    if (is_record(name, MigrationRole::kSource) || is_record(name, MigrationRole::kTarget)) {
      paths.push_back(entry.path());
    }
  }
  return paths;
}

Result<std::vector<OwnershipRecord>> RecordStore::list(std::vector<Error>* unreadable,
                                                       const std::set<std::string>& without) const {
  const auto paths = record_directories();
  if (!paths) return failure(paths.error());
  std::vector<OwnershipRecord> records;
  for (const std::string& path : *paths) {
    if (without.contains(fs::path(path).filename())) continue;
    auto record = read_directory(path);
    // ENOENT: the record has no version yet. Its creator is still at work, or has died.
    if (record) {
      records.push_back(std::move(*record));
    } else if (unreadable != nullptr && record.error().errno_value != ENOENT) {
      unreadable->push_back(record.error());
    }
  }
  sort_by_age(records);
  return records;
}

// The marks are files beside the records, so that one pass over the directory finds both. A mark is
// written only after the record was synced, and no change unsettles a record.
Result<std::vector<OwnershipRecord>> RecordStore::list_unsettled(MigrationRole role) const {
  const auto entries = list_directory(directory_);
  if (!entries) return failure(entries.error());
  std::unordered_set<std::string> marks;
  std::vector<std::string> paths;
  for (const auto& entry : *entries) {
    std::string path = entry.path();
    if (path.ends_with(kSettledMark)) {
      path.resize(path.size() - kSettledMark.size());
      marks.insert(std::move(path));
    } else if (is_record(entry.path().filename(), role)) {
      paths.push_back(std::move(path));
    }
  }
  std::vector<OwnershipRecord> records;
  for (const std::string& path : paths) {
    if (marks.contains(path)) continue;
    auto record = read_directory(path);
    if (!record) continue;
    if (record->is_settled()) {
      // If the mark cannot be written, the next call reads the record again.
      std::ofstream(path + std::string(kSettledMark));
    } else {
      records.push_back(std::move(*record));
    }
  }
  sort_by_age(records);
  return records;
}

Result<std::vector<OwnershipRecord>> RecordStore::list_for_display(
    int64_t created_from_ns, std::vector<Error>* unreadable) const {
  const auto paths = record_directories();
  if (!paths) return failure(paths.error());
  std::vector<OwnershipRecord> records;
  for (const std::string& path : *paths) {
    struct stat facts {};
    if (stat(path.c_str(), &facts) != 0) continue;
    // Does not read a record whose directory last changed before `created_from_ns`: the record is
    // older than that change. The clock of a file system may be behind by up to a tick.
    constexpr int64_t kTickMaxNs = 100'000'000;
    const int64_t changed_ns = facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec;
    if (changed_ns < created_from_ns - kTickMaxNs) continue;
    auto record = read_directory(path, Reading::kAsItIs);
    if (record) {
      if (record->history().front().at_ns >= created_from_ns) records.push_back(std::move(*record));
    } else if (unreadable != nullptr && record.error().errno_value != ENOENT) {
      unreadable->push_back(record.error());
    }
  }
  sort_by_age(records);
  return records;
}

Result<OwnershipRecord> RecordStore::change(const std::string& id, MigrationRole role,
                                            const Change& change) const {
  for (;;) {
    auto record = read(id, role);
    if (!record) return record;
    const OwnershipRecord before = *record;
    if (Status changed = change(*record); !changed) return failure(changed.error());
    if (Status follows = check_follows(before, *record); !follows) {
      return failure(follows.error());
    }
    record->version = before.version + 1;
    const Status written = write(path_of(id, role), *record);
    if (!written && written.error().errno_value == EEXIST) continue;  // another process was faster
    if (!written) return failure(written.error());
    if (record->state() != before.state()) pause_point(path_of(id, role), *record);
    return record;
  }
}

Result<OwnershipRecord> RecordStore::wait(const std::string& id, MigrationRole role,
                                          uint64_t version, milliseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  auto watch = RecordWatch::open(*this, id, role);
  for (;;) {
    const auto latest = latest_version(path_of(id, role));
    if (!latest || *latest > version || Clock::now() >= deadline) return read(id, role);
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    pollfd fd{watch ? watch->fd() : -1, POLLIN, 0};
    poll(&fd, 1, static_cast<int>(std::min(left, kPollInterval).count()));
    if (watch) watch->drain();
  }
}

std::vector<std::string> RecordStore::set_unreadable_aside() const {
  std::vector<std::string> reports;
  for (const std::string& path : record_directories().value_or(std::vector<std::string>())) {
    const auto record = read_directory(path);
    if (record || record.error().errno_value != EPROTO) continue;
    const std::string aside = prefix_of_aside(path) + random_migration_id().substr(0, 8);
    std::error_code failed;
    fs::rename(path, aside, failed);
    if (failed) continue;
    reports.push_back(record.error().message + "; the record is now in " + aside +
                      ", and nothing settles its migration any more: check on both nodes whether "
                      "its processes run, and end a CRIU that holds them");
  }
  return reports;
}

// Reads only records that are old enough.
void RecordStore::prune(std::chrono::seconds kept) const {
  std::error_code ignored;
  for (const std::string& path : record_directories().value_or(std::vector<std::string>())) {
    const auto changed_at = fs::last_write_time(path, ignored);
    const auto age = fs::file_time_type::clock::now() - changed_at;
    if (ignored || age < kept) continue;
    const auto record = read_directory(path);
    if (!record || !record->is_settled()) continue;
    const bool unseen = record->role == MigrationRole::kTarget && !record->peer_notified;
    if (unseen && age < std::max<std::chrono::seconds>(kept, kUnseenRecordsKept)) continue;
    // Renames the record before the removal: an interrupted removal must not leave an older version
    // as the latest one.
    const std::string removed = directory_ + "/removed-" + random_migration_id();
    fs::rename(path, removed, ignored);
    if (ignored) continue;
    fs::remove_all(removed, ignored);
    fs::remove(path + std::string(kSettledMark), ignored);
  }
}

ContactClock::ContactClock(const RecordStore& store, std::string id, MigrationRole role)
    : path_(store.directory() + "/" + RecordStore::name_of(id, role)) {
  (void)silent_for();
  // Adds the silence before this process began to measure, according to the node's clock.
  const auto before = std::chrono::nanoseconds(realtime_ns() - seen_ns_);
  if (seen_ns_ > 0 && before.count() > 0) {
    since_ -= std::chrono::duration_cast<Clock::duration>(before);
  }
}

std::chrono::milliseconds ContactClock::silent_for() {
  struct stat facts {};
  int64_t at_ns = 0;
  if (stat(path_.c_str(), &facts) == 0) {
    at_ns = facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec;
  }
  const auto now = Clock::now();
  if (std::exchange(seen_ns_, at_ns) != at_ns) since_ = now;
  return std::chrono::duration_cast<milliseconds>(now - since_);
}

Result<RecordWatch> RecordWatch::open(const RecordStore& store, const std::string& id,
                                      MigrationRole role) {
  UniqueFd inotify(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  const std::string path = store.directory() + "/" + id + "." + to_string(role);
  if (!inotify || inotify_add_watch(inotify.get(), path.c_str(), IN_CREATE) < 0) {
    return system_failure("watch", path);
  }
  return RecordWatch(std::move(inotify));
}

void RecordWatch::drain() const {
  char events[4096];
  while (::read(inotify_.get(), events, sizeof events) > 0) {
  }
}

}  // namespace ppmr
