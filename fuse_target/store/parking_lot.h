// Requests that wait for bytes, sizes or names to arrive, without blocking a thread. The thread
// that lands a chunk retries the requests that wait for it.
//
// A parked request leaves the lot when it was answered, when its checkpoint fails (its retry then
// answers EIO), when its caller is being killed, or when the mount ends. If its caller receives
// another signal, it stays parked: CRIU treats an interrupted preadv as a failed restore.
//
// Considered and not used: a waiting thread per reader. CRIU has a reader per task, a lazy restore
// has many more.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <list>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace ppmr {

struct ParkedRequest {
  const void* id = nullptr;  // identifies the request in interrupted()
  pid_t caller = 0;
  // The request waits for these two objects: a call of changed() for one of them retries the
  // request.
  const void* subject = nullptr;
  const void* checkpoint = nullptr;
  // Called once, before the first retry. From then on interrupted() finds the request. May be
  // empty.
  std::function<void()> on_parked;
  // Answers the request if possible, and returns whether it answered. It may throw only before it
  // answers; the lot then calls `refuse`.
  std::function<bool()> retry;
  std::function<void(int errno_value)> refuse;  // answers with an error; does not throw
};

// Threads: any thread may call any member. The lot holds no lock when it calls retry or refuse.
class ParkingLot {
 public:
  // `is_dying` returns whether a signal is killing a process. Throws std::system_error when the
  // lot's thread cannot be started.
  explicit ParkingLot(std::function<bool(pid_t)> is_dying);
  // The owner must have called close() before.
  ~ParkingLot();

  // Adds the request and retries it once, because its subject may have changed since the caller's
  // own attempt. Throws std::bad_alloc; the lot then has no new request.
  void park(ParkedRequest request);
  // Retries the requests that wait for `subject`. Does not throw or allocate.
  void changed(const void* subject);
  // Called when the caller of a request has received a signal. Allowed at any time, also after the
  // answer. Does not throw.
  void interrupted(const void* id);
  // Refuses all current and later requests with ENOTCONN. Blocks until no thread retries a request.
  void close();

  size_t parked() const { return parked_.load(); }

 private:
  struct Entry {
    ParkedRequest request;
    std::list<Entry>::iterator self;
    bool claimed = false;  // a thread retries the request; only that thread removes the entry
    Entry* next_claimed = nullptr;
    bool retry_again = false;  // changed() was called while the entry was claimed
    bool interrupted = false;
  };

  template <typename Predicate>
  Entry* claim_locked(Predicate wanted) PPMR_REQUIRES(mutex_);
  template <typename Action>
  static void for_each_claimed(Entry* first, Action action);
  void retry(Entry& entry);
  void remove(Entry& entry, int errno_value);
  void watch_interrupted();

  const std::function<bool(pid_t)> is_dying_;
  std::atomic<size_t> parked_ = 0;  // if 0, changed() returns at once

  Mutex mutex_;
  CondVar emptied_;
  std::list<Entry> entries_ PPMR_GUARDED_BY(mutex_);
  bool closed_ PPMR_GUARDED_BY(mutex_) = false;

  // A thread that holds this mutex takes no other lock, because libfuse calls interrupted() while
  // it holds its lock of the request.
  Mutex interrupts_mutex_;
  CondVar interrupt_arrived_;
  std::vector<const void*> interrupts_ PPMR_GUARDED_BY(interrupts_mutex_);
  // An id could not be stored for lack of memory, so any request may be interrupted.
  bool interrupts_lost_ PPMR_GUARDED_BY(interrupts_mutex_) = false;
  bool stopping_ PPMR_GUARDED_BY(interrupts_mutex_) = false;

  std::thread watcher_;  // declared last: the thread uses the members above
};

}  // namespace ppmr
