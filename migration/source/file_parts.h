// Sends the files in memory of a tree, also deleted ones, and its shared memory (processes/files):
// in rounds while it runs, and the rest when it is frozen. Each part is a checkpoint of its own,
// NAME.files-N. The target puts a sealed part in place and frees it, so it never keeps more than a
// few parts beside the files themselves.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "mount/mount_table.h"
#include "processes/files/file_rounds.h"
#include "processes/files/segment_rounds.h"
#include "processes/memory/pace.h"

namespace ppmr {

struct FilePartsPlace {
  MountEntry mount;
  std::string checkpoint;  // the name of the tree's checkpoint
  std::chrono::milliseconds seal_patience{0};
  PaceFiles pace;                         // of the rounds
  std::chrono::milliseconds max_time{0};  // no round begins later
  // Returns an error when the migration is over.
  std::function<Status()> go_on;
  // Returns at once, or at the end of a pause. Errors: the migration is over.
  std::function<Status()> await_resumed;
  // Called after a round of the running tree, with the bytes that the round has sent.
  std::function<void(uint64_t bytes)> on_round;
};

// Threads: one at a time.
class FileParts {
 public:
  // Finds the file systems and the shared memory of the tree. Sends nothing. Errors: those of
  // open_private_tmpfs() and open_shared_segments().
  static Result<FileParts> open(FilePartsPlace place, pid_t root);

  bool is_empty() const { return rounds_.is_empty() && !has_segments_; }
  // Names the file systems whose content CRIU must leave out (restart_loader/criu/files_apart.h).
  std::string list_of_devices() const;
  // Names the shared memory and the deleted files that CRIU must leave out. Valid after catch_up().
  std::string list_of_inodes() const { return segments_.list_of_inodes(); }

  // Sends the files, and then what has changed, until little changes within a round. Errors: those
  // of the file system and of the daemon; ETIMEDOUT if the target does not take the parts.
  Status copy(pid_t root);
  // Sends what the running tree has changed since. Returns when all is in place at the target.
  Status catch_up(pid_t root);
  // Sends the rest and the names of the frozen tree's files. Returns when the target has verified
  // them.
  Status send_last(pid_t root);
  // Returns the size of all parts that were sealed.
  uint64_t sent_bytes() const { return sent_bytes_; }
  // Removes the names of parts from the source's mount.
  void remove_names();

 private:
  FileParts(FilePartsPlace place, FileRounds rounds, SegmentRounds segments, bool has_segments)
      : place_(std::move(place)),
        pace_(place_.pace),
        rounds_(std::move(rounds)),
        has_segments_(has_segments),
        segments_(std::move(segments)) {}
  Result<uint64_t> send_round(pid_t root, bool may_pause);
  Status put(const FileRecord& record);
  Status open_part();
  Status flush();
  Status rest();
  Status seal_part(bool is_last);
  // Waits until the target has put all parts in place except the last `left`.
  Status await_taken(size_t left);
  Result<bool> was_taken(uint64_t number) const;
  std::string path() const;

  FilePartsPlace place_;
  PacedReading pace_;
  bool is_paced_ = false;       // the tree runs: --max-rate and --cpu-share apply
  uint64_t unpaced_bytes_ = 0;  // flushed since the last rest
  FileRounds rounds_;
  bool has_segments_;  // there was shared memory when the object was created
  SegmentRounds segments_;
  UniqueFd file_;         // of the part
  std::string pending_;   // records that are not written yet
  uint64_t written_ = 0;  // to the part
  uint64_t sent_bytes_ = 0;
  uint64_t number_ = 0;          // of the part
  std::deque<uint64_t> sealed_;  // parts that the target has not put in place yet
};

}  // namespace ppmr
