// Requests that wait for bytes, sizes or names to arrive, without blocking a thread. The thread
// that lands a chunk retries the requests that wait for it.
//
// A parked request leaves when it was answered, when its checkpoint fails (its retry then answers
// EIO), when its caller is being killed, or when the mount ends. A caller that receives another
// signal stays: CRIU treats an interrupted preadv as a failed restore.
//
// Rejected: a waiting thread per reader. CRIU has a reader per task, a lazy restore many more.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace ppmr {

struct ParkedRequest {
  const void* id = nullptr;  // identifies the request in interrupted()
  pid_t caller = 0;
  // What the request waits for: changed() of either one retries it.
  const void* subject = nullptr;
  const void* checkpoint = nullptr;
  // Called once, before the first retry: from then on interrupted() finds the request. May be
  // empty.
  std::function<void()> on_parked;
  // Answers the request if possible; returns whether it did. When it throws, the request has not
  // been answered: the lot refuses it.
  std::function<bool()> retry;
  std::function<void(int errno_value)> refuse;  // answers with an error; throws nothing
};

// Threads: all members by any. The lot holds no lock when it calls retry or refuse.
class ParkingLot {
 public:
  // `is_dying` returns whether a process is being killed. Throws std::system_error when its thread
  // cannot be started.
  explicit ParkingLot(std::function<bool(pid_t)> is_dying);
  // Requires that close() has returned.
  ~ParkingLot();

  // Retries the request once, because its subject may have changed since the caller's own attempt.
  // Throws std::bad_alloc, with no effect.
  void park(ParkedRequest request);
  // Retries the requests that wait for `subject`. Throws nothing, allocates nothing.
  void changed(const void* subject);
  // The caller of a request received a signal. Allowed at any time, also after the answer.
  // Throws nothing.
  void interrupted(const void* id);
  // Refuses all present and later requests with ENOTCONN. Blocks until none is being retried.
  void close();

  size_t parked() const { return parked_.load(); }

 private:
  struct Entry {
    ParkedRequest request;
    std::list<Entry>::iterator self;
    bool claimed = false;  // a thread is retrying it; only that thread removes the entry
    Entry* next_claimed = nullptr;
    bool retry_again = false;  // changed() was called while the entry was claimed
    bool interrupted = false;
  };

  template <typename Predicate>
  Entry* claim_locked(Predicate wanted);
  template <typename Action>
  static void for_each_claimed(Entry* first, Action action);
  void retry(Entry& entry);
  void remove(Entry& entry, int errno_value);
  void watch_interrupted();

  const std::function<bool(pid_t)> is_dying_;
  std::atomic<size_t> parked_ = 0;  // lets changed() return early

  std::mutex mutex_;
  std::condition_variable emptied_;
  std::list<Entry> entries_;  // guarded by mutex_
  bool closed_ = false;       // guarded by mutex_

  // Innermost lock: libfuse holds a lock of the request when it calls interrupted().
  std::mutex interrupts_mutex_;
  std::condition_variable interrupt_arrived_;
  // Guarded by interrupts_mutex_.
  std::vector<const void*> interrupts_;
  bool interrupts_lost_ = false;  // out of memory: any request may be interrupted
  bool stopping_ = false;

  std::thread watcher_;  // last: it uses all of the above
};

}  // namespace ppmr
