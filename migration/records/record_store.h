// The records of a node's migrations, in a directory on its disk.
//
// A record is a directory ID.ROLE of numbered versions: 1.json, 2.json, ... A change writes a
// temporary file, syncs it, and links it to the next number. link(2) fails if another process has
// taken that number: a compare-and-set on disk. Versions stay as long as the record exists. So a
// writer that was stopped between reading and writing cannot overwrite a change of another process.
//
// Rejected: one file that is replaced under flock(2). A process that is stopped while it holds the
// lock would block all others, including the hook that must release a frozen process.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "migration/records/ownership_record.h"

namespace ppmr {

inline constexpr const char* kDefaultStateDirectory = "/var/lib/ppmr";
// The time for which a record is kept after its migration is over.
inline constexpr std::chrono::hours kRecordsKept{30 * 24};

// The time for which a target keeps a record whose outcome its source has not seen yet.
inline constexpr std::chrono::hours kUnseenRecordsKept{365 * 24};

// A record that cannot be read, or is set aside.
struct UnreadableRecord {
  Error error;  // names the record
  // The latest version that can be read, if any. It names the same peer and processes.
  std::optional<OwnershipRecord> earlier;
};

// Threads: any. Any number of processes may use one directory.
class RecordStore {
 public:
  // Creates the directory (0700) if it is missing. Errors: those of the file system; EPERM if other
  // users may write to it.
  static Result<RecordStore> open(const std::string& directory);
  // Checks a directory like open(), but creates nothing. A missing directory passes.
  static Status check(const std::string& directory);

  const std::string& directory() const { return directory_; }

  // Notes that the migration's coordinator is at work.
  void note_contact(const std::string& id, MigrationRole role) const;
  // Creates the directory (0700) for CRIU's logs, scripts and pid files of one tree. Returns its
  // path.
  Result<std::string> make_work_directory(const std::string& id, MigrationRole role,
                                          size_t tree) const;

  // Returns the path of that directory.
  std::string work_path(const std::string& id, MigrationRole role, size_t tree) const;

  // Writes the first version of a record. If several processes create a record of one ID, only one
  // succeeds. Errors: EEXIST; EPROTO: the record of this ID is set aside.
  Result<OwnershipRecord> create(OwnershipRecord record) const;
  // Creates a record that is aborted from the start and needs no message to the peer. A migration
  // of this ID that has not begun can then never begin. Errors: EEXIST: the migration has begun.
  Result<OwnershipRecord> create_aborted(OwnershipRecord record) const;
  // Returns the latest version, which is durable on return. Errors: ENOENT; EPROTO, also if the
  // record is set aside: then the migration may still have processes here.
  Result<OwnershipRecord> read(const std::string& id, MigrationRole role) const;
  // Returns all records, oldest first, except those whose name_of() is in `without`. Appends the
  // errors of unreadable records to `unreadable`.
  Result<std::vector<OwnershipRecord>> list(std::vector<Error>* unreadable = nullptr,
                                            const std::set<std::string>& without = {}) const;
  // Returns the name of the record's directory.
  static std::string name_of(const std::string& id, MigrationRole role);
  // Returns the path of the record's directory.
  std::string path_of(const std::string& id, MigrationRole role) const;
  // Returns the records of a role that are not settled, oldest first. Leaves out records that it
  // cannot read. Marks every other record that it has read, and does not read marked records again.
  // So its cost does not grow with the number of records that the node keeps. Errors: those of
  // list().
  Result<std::vector<OwnershipRecord>> list_unsettled(MigrationRole role) const;
  // Returns, for display, the records that were created at or after this time (CLOCK_REALTIME),
  // oldest first. Reads without syncing, so a change in the result may still be lost in a power
  // failure. Errors: those of list().
  Result<std::vector<OwnershipRecord>> list_for_display(
      int64_t created_from_ns, std::vector<Error>* unreadable = nullptr) const;

  // Applies `change` to the latest version and writes the result, which is durable on return. If
  // another process writes a version in the meantime, calls `change` again. If `change` returns an
  // error, writes nothing. Errors: EPERM if the result is not the same migration in the same state
  // or in one that may follow it.
  using Change = std::function<Status(OwnershipRecord&)>;
  Result<OwnershipRecord> change(const std::string& id, MigrationRole role,
                                 const Change& change) const;
  // Blocks until there is a version after `version`, or until the timeout. Returns the latest
  // version.
  Result<OwnershipRecord> wait(const std::string& id, MigrationRole role, uint64_t version,
                               std::chrono::milliseconds timeout) const;

  // Renames the records that cannot be parsed, so that the next call does not report them again.
  // Returns a sentence for each: the error and the new path. Does not touch records that a newer
  // version of ppmr has written, or that the disk cannot read.
  std::vector<std::string> set_unreadable_aside() const;
  // Returns the records of a role that cannot be read, and those that are set aside. A decision
  // that depends on all records of a process must not ignore them. Errors: those of list().
  Result<std::vector<UnreadableRecord>> list_unreadable(MigrationRole role) const;

  // Removes records whose migration is over and that have not changed for `kept`. Never removes a
  // source's record whose outcome the target does not know yet. A target's record whose outcome the
  // source has not seen stays for kUnseenRecordsKept: a source that was down for a long time still
  // asks for it.
  void prune(std::chrono::seconds kept = kRecordsKept) const;

 private:
  explicit RecordStore(std::string directory) : directory_(std::move(directory)) {}
  Result<OwnershipRecord> write_first(OwnershipRecord record) const;
  Result<std::vector<std::string>> record_directories() const;
  // kSynced: makes the version durable first, because a decision may depend on it.
  enum class Reading { kSynced, kAsItIs };
  Result<OwnershipRecord> read_directory(const std::string& path,
                                         Reading reading = Reading::kSynced) const;
  Status write(const std::string& path, OwnershipRecord& record) const;

  std::string directory_;
};

// Measures how long a migration's coordinator has been silent. From its construction on, it uses
// the steady clock, which cannot be set. Threads: one.
class ContactClock {
 public:
  ContactClock(const RecordStore& store, std::string id, MigrationRole role);
  std::chrono::milliseconds silent_for();

 private:
  std::string path_;  // of the record's directory; its modification time is the time of the contact
  int64_t seen_ns_ = -1;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

// A descriptor that becomes readable when a record may have changed, for poll(2).
// Threads: one.
class RecordWatch {
 public:
  static Result<RecordWatch> open(const RecordStore& store, const std::string& id,
                                  MigrationRole role);
  int fd() const { return inotify_.get(); }
  void drain() const;

 private:
  explicit RecordWatch(UniqueFd inotify) : inotify_(std::move(inotify)) {}
  UniqueFd inotify_;
};

}  // namespace ppmr
