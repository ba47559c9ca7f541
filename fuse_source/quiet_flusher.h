// Sends gathered small writes after about a millisecond of quiet: a writer that pauses does not
// keep its bytes from the target, nor its slot from the others.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fuse_source/file_writer.h"

namespace ppmr {

// Threads: any.
class QuietFlusher {
 public:
  QuietFlusher() : thread_([this] { run(); }) {}
  ~QuietFlusher();

  // `writer` has begun to gather, and is not watched yet.
  void watch(std::shared_ptr<FileWriter> writer);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<FileWriter>> watched_;  // guarded by mutex_
  bool stopping_ = false;                             // guarded by mutex_

  std::thread thread_;  // last: ends before what it uses
};

}  // namespace ppmr
