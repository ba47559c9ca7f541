// Sends gathered small writes after about a millisecond without a further write. Otherwise a pause
// of the writer would delay these bytes and the release of their slot.
#pragma once

#include <list>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "fuse_source/file_writer.h"

namespace ppmr {

// Threads: any.
class QuietFlusher {
 public:
  QuietFlusher() : thread_([this] { run(); }) {}
  ~QuietFlusher();

  // Calls writer->flush_if_quiet() until it returns true. Called after adopt() of that writer has
  // returned true.
  void watch(std::shared_ptr<FileWriter> writer);

 private:
  void run();

  Mutex mutex_;
  CondVar changed_;
  std::list<std::shared_ptr<FileWriter>> watched_ PPMR_GUARDED_BY(mutex_);
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // declared last: the members that the thread uses exist before it starts
};

}  // namespace ppmr
