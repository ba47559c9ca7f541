// Requests that wait for bytes, sizes or names to arrive. No thread waits for them: what arrives
// answers them, on the thread that brought it.
//
// A parked request leaves when it was answered, when its checkpoint fails (its retry sees that and
// answers EIO), when its caller is being killed, or when the mount ends. A caller that merely got a
// signal stays: CRIU takes a failed preadv as the end of the restore.
//
// Rejected: a waiting thread per reader (CRIU has one per task, and a lazy restore many more).
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
  const void* id = nullptr;  // names the request to interrupted()
  pid_t caller = 0;
  // What it waits for: changed() of one of them tries it again.
  const void* subject = nullptr;
  const void* checkpoint = nullptr;
  std::function<bool()> retry;                  // answers if it can now; true when it did
  std::function<void(int errno_value)> refuse;  // answers with an error
};

// Threads: all members by any. Neither retry nor refuse is called with a lock of the lot held.
class ParkingLot {
 public:
  // `is_dying` tells whether a caller is on its way out.
  explicit ParkingLot(std::function<bool(pid_t)> is_dying);
  // close() was called.
  ~ParkingLot();

  // Tries the request once more, so that a change between the caller's own try and this is not
  // lost.
  void park(ParkedRequest request);
  void changed(const void* subject);
  // Its caller got a signal. May be called while the request is being answered, or afterwards.
  void interrupted(const void* id);
  // Refuses all, and from now on every request, with ENOTCONN.
  void close();

  size_t parked() const { return parked_.load(); }

 private:
  struct Entry {
    ParkedRequest request;
    bool trying = false;     // a thread is at it; only that one may remove the entry
    bool try_again = false;  // something changed meanwhile
    bool interrupted = false;
  };
  using Entries = std::list<Entry>;

  void try_entry(Entries::iterator entry);
  void leave(Entries::iterator entry, int errno_value);
  void watch_interrupted();
  std::vector<Entries::iterator> claim_locked(const std::function<bool(Entry&)>& wanted);

  const std::function<bool(pid_t)> is_dying_;
  std::atomic<size_t> parked_ = 0;  // so that changed() costs nothing while nobody waits

  std::mutex mutex_;
  std::condition_variable emptied_;
  Entries entries_;      // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_

  // Apart and innermost: libfuse calls interrupted() with a lock of the request held.
  std::mutex interrupts_mutex_;
  std::condition_variable interrupt_arrived_;
  std::vector<const void*> interrupts_;  // guarded by interrupts_mutex_
  bool stopping_ = false;                // guarded by interrupts_mutex_

  std::thread watcher_;  // last: ends before what it uses
};

}  // namespace ppmr
