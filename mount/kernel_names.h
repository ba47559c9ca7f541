// Lets the kernel forget names that a daemon has removed without a request of the kernel.
#pragma once

#include <fuse3/fuse_lowlevel.h>

#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace ppmr {

// The kernel keeps each name and inode that it has looked up until it is short of memory, or until
// it looks the name up again. Until then the daemon must keep the node of each inode.
//
// Uses a thread of its own: the kernel may have locked the root directory for a request that waits
// for the caller of removed(). Threads: begin() and end() by one, removed() by any.
class KernelNames {
 public:
  ~KernelNames() { end(); }

  // `session` is valid until end().
  void begin(fuse_session* session);
  // Requests that wait must have their replies before.
  void end();
  // Lets the kernel forget a name in the root directory, and all names below it. Returns at once.
  // Has no effect before begin() and after end(), or if the thread cannot be started: then the
  // kernel keeps the names.
  void removed(const std::string& name);

 private:
  void run();

  Mutex mutex_;
  CondVar changed_;
  std::set<std::string> names_ PPMR_GUARDED_BY(mutex_);
  fuse_session* session_ PPMR_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_ PPMR_GUARDED_BY(mutex_);  // started for the first name
};

}  // namespace ppmr
