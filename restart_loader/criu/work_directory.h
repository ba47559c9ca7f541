// CRIU's work directory on this side: logs, pid file, the socket of lazy-pages.
#pragma once

#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// A fresh private directory is removed at the end unless keep() was called; one that the user chose
// always stays. Threads: one.
class WorkDirectory {
 public:
  // `chosen` (made if it is missing), or a fresh one in /run/ppmr, or in /tmp where that cannot be.
  static Result<WorkDirectory> create(const std::string& chosen);

  WorkDirectory(WorkDirectory&& other) noexcept
      : path_(std::move(other.path_)), remove_(std::exchange(other.remove_, false)) {}
  ~WorkDirectory();

  const std::string& path() const { return path_; }  // absolute
  void keep() { remove_ = false; }

 private:
  WorkDirectory(std::string path, bool remove) : path_(std::move(path)), remove_(remove) {}

  std::string path_;
  bool remove_;
};

}  // namespace ppmr
