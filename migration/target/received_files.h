// Puts the files in memory and the shared memory of a tree in place while they arrive
// (migration/source/file_parts.h), in a thread of its own. The thread removes each part from the
// store as soon as the part is in place.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "processes/files/segment_builder.h"

namespace ppmr {

struct ReceivedFilesPlace {
  std::string control_socket;  // of the target's daemon
  std::string mountpoint;
  std::string checkpoint;  // the name of the tree's checkpoint
  std::string owner;       // the peer that may send it
  std::string directory;   // for the mounts, see processes/files/tmpfs_builder.h
  // false: trees of this peer may not have files of root, so the peer may send only shared memory.
  bool is_allowed = false;
};

// Threads: one.
class ReceivedFiles {
 public:
  explicit ReceivedFiles(ReceivedFilesPlace place);
  // Ends the thread. What is in place stays.
  ~ReceivedFiles();
  ReceivedFiles(const ReceivedFiles&) = delete;

  // Call it when the images are sealed: the first part is sealed before them. Returns when all
  // files are in place, or at once if the tree has none. `is_over` ends the wait. Errors: those of
  // TmpfsBuilder and of the daemon; ECANCELED.
  Status finish(const std::function<bool()>& is_over);
  // Call it after finish().
  std::vector<BuiltSegment> take_segments() { return std::move(segments_); }
  // Returns what has failed; success: nothing so far.
  Status failed() const { return has_ended_ ? result_ : Status{}; }
  // A value that changes while parts arrive.
  uint64_t parts() const { return parts_; }

 private:
  void receive();
  Status receive_parts();
  Status wait_for(const std::string& name, std::chrono::milliseconds timeout) const;

  const ReceivedFilesPlace place_;
  std::atomic<bool> stops_ = false;
  std::atomic<uint64_t> parts_ = 0;
  std::atomic<bool> has_ended_ = false;
  Status result_;                       // valid if has_ended_
  std::vector<BuiltSegment> segments_;  // valid if has_ended_
  std::thread thread_;
};

// Removes the parts of a tree from the store of the target's daemon.
void remove_parts(const std::string& control_socket, const std::string& checkpoint,
                  const std::string& owner);

}  // namespace ppmr
