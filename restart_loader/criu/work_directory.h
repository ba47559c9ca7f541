// CRIU's work directory: logs, pid file, the socket of the pager.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// The destructor removes a temporary directory unless keep() was called. It does not remove a
// directory that the user chose. Threads: one.
class WorkDirectory {
 public:
  // Opens the directory `chosen`, creating it (mode 0700) if missing. If `chosen` is empty, creates
  // a temporary directory in /run/ppmr. Errors: EPERM if other users can change the directory; of
  // the file system.
  static Result<WorkDirectory> create(const std::string& chosen);

  WorkDirectory(WorkDirectory&& other) noexcept
      : path_(std::move(other.path_)), remove_(std::exchange(other.remove_, false)) {}
  ~WorkDirectory();

  const std::string& path() const { return path_; }  // absolute path
  void keep() { remove_ = false; }

 private:
  WorkDirectory(std::string path, bool remove) : path_(std::move(path)), remove_(remove) {}

  std::string path_;
  bool remove_;
};

}  // namespace ppmr
