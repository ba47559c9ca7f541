// The records of a node's migrations, in a directory on its disk.
//
// A record is a directory ID.ROLE of numbered versions: 1.json, 2.json, ... A change writes the
// next version beside them, syncs it, and gives it its number with link(2), which fails when
// somebody else took that number in the meantime: a compare-and-set on disk. Versions are not
// removed while the record exists, so a writer that slept between reading and writing always loses.
//
// Rejected: one file, replaced under flock(2). A process that is stopped while it holds the lock
// would stop everybody else, also the hook that has to let a frozen process go.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "buffer_pool/unique_fd.h"
#include "restart_loader/records/ownership_record.h"

namespace ppmr {

inline constexpr const char* kDefaultStateDirectory = "/var/lib/ppmr";

// Threads: any; also any number of processes.
class RecordStore {
 public:
  // Makes the directory (0700) if it is missing. Errors: of the file system; EPERM when others may
  // write into it.
  static Result<RecordStore> open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  // A place for CRIU's logs, scripts and pid files of one tree; made 0700.
  Result<std::string> make_work_directory(const std::string& id, MigrationRole role,
                                          size_t tree) const;

  // Errors: EEXIST.
  Result<OwnershipRecord> create(OwnershipRecord record) const;
  // The latest version, durable: what it says may be acted on. Errors: ENOENT, EPROTO.
  Result<OwnershipRecord> read(const std::string& id, MigrationRole role) const;
  // All records, oldest first. What cannot be read is left out and named in `unreadable`.
  Result<std::vector<OwnershipRecord>> list(std::vector<Error>* unreadable = nullptr) const;

  // Writes what `change` makes of the latest version; `change` is called again when somebody else
  // was quicker, and its error ends it with nothing written. The new version is durable then.
  using Change = std::function<Status(OwnershipRecord&)>;
  Result<OwnershipRecord> change(const std::string& id, MigrationRole role,
                                 const Change& change) const;
  // To `state` and what `also` adds to it. Without effect when it is there already. Errors: EPERM
  // when that may not follow the present state; the message names both.
  Result<OwnershipRecord> advance(const std::string& id, MigrationRole role, MigrationState state,
                                  const Change& also = {}) const;

  // Waits until there is a version after `version` and returns the latest one; after the time-out
  // whatever there is.
  Result<OwnershipRecord> wait(const std::string& id, MigrationRole role, uint64_t version,
                               std::chrono::milliseconds timeout) const;

  // Removes all but the youngest `keep` records that are over and that nobody has to be told of.
  void prune(size_t keep = 100) const;

 private:
  explicit RecordStore(std::string directory) : directory_(std::move(directory)) {}
  std::string path_of(const std::string& id, MigrationRole role) const;
  Result<OwnershipRecord> read_directory(const std::string& path) const;
  Status write(const std::string& path, OwnershipRecord& record) const;

  std::string directory_;
};

// Readable when a record may have changed: for callers that wait for other things, too.
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
