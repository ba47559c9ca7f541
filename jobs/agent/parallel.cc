#include "jobs/agent/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace ppmr {
namespace {

// Many threads are useful, because a thread waits for a host for most of its time.
constexpr size_t kThreadsMax = 128;

}  // namespace

Status for_each_in_parallel(size_t count, const std::function<Status(size_t)>& work) {
  std::atomic<size_t> next{0};
  Mutex mutex;
  Status first;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      Status done;
      try {
        done = work(i);
      } catch (const std::exception& error) {
        done = failure(EIO, error.what());
      }
      MutexLock lock(mutex);
      if (!done && first) first = std::move(done);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < std::min(count, kThreadsMax); ++i) threads.emplace_back(run);
  } catch (const std::system_error&) {
    // If no more threads can start, the threads that have started do the work.
  }
  run();
  for (std::thread& thread : threads) thread.join();
  return first;
}

}  // namespace ppmr
