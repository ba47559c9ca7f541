// Locks that clang checks. A member that says PPMR_GUARDED_BY(mutex_) can only be used with mutex_
// held, and a function that says PPMR_REQUIRES(mutex_) can only be called with mutex_ held: clang's
// -Wthread-safety rejects everything else (tests/thread_safety). For g++ the annotations are empty.
// The types cost no more than the types of the standard library.
//
// The analysis looks at one function at a time and compares expressions. It does not see that a
// lambda runs under its caller's lock, nor that two names mean the same mutex. A lambda that runs
// under the caller's lock declares it:
//
//     changed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) { return stopping_; });
//
// A function may need a mutex of another object that its annotation cannot name. Such a function
// calls assert_held() on the mutex.
//
// Model: port::Mutex and thread_annotations.h of LevelDB. The attributes:
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <utility>

#ifdef __clang__
#define PPMR_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define PPMR_THREAD_ATTRIBUTE(...)
#endif

// Annotates a member. A thread that reads it holds the mutex (a SharedMutex at least for reading);
// a thread that writes it holds the mutex exclusively.
#define PPMR_GUARDED_BY(mutex) PPMR_THREAD_ATTRIBUTE(guarded_by(mutex))
// Annotates a pointer. Access to its target needs the mutex; access to the pointer does not.
#define PPMR_POINTEE_GUARDED_BY(mutex) PPMR_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// Annotates a mutex with the order in which a thread locks it and other mutexes.
#define PPMR_ACQUIRED_BEFORE(...) PPMR_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))
#define PPMR_ACQUIRED_AFTER(...) PPMR_THREAD_ATTRIBUTE(acquired_after(__VA_ARGS__))

// Annotates a function whose caller must hold the mutex before and after the call.
#define PPMR_REQUIRES(...) PPMR_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define PPMR_REQUIRES_SHARED(...) PPMR_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
// Annotates a function whose caller must not hold the mutex, because the function locks it.
#define PPMR_EXCLUDES(...) PPMR_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Annotates a function that locks or unlocks the mutex.
#define PPMR_ACQUIRE(...) PPMR_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define PPMR_ACQUIRE_SHARED(...) PPMR_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define PPMR_TRY_ACQUIRE(...) PPMR_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define PPMR_RELEASE(...) PPMR_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define PPMR_RELEASE_SHARED(...) PPMR_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
// Annotates a function. After a call of it, the analysis takes the mutex as held.
#define PPMR_ASSERT_CAPABILITY(...) PPMR_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define PPMR_ASSERT_SHARED_CAPABILITY(...) \
  PPMR_THREAD_ATTRIBUTE(assert_shared_capability(__VA_ARGS__))
// Annotates a function that returns the mutex of that name.
#define PPMR_RETURN_CAPABILITY(mutex) PPMR_THREAD_ATTRIBUTE(lock_returned(mutex))
// Annotates a class: CAPABILITY for a mutex, SCOPED_CAPABILITY for a class whose objects hold a
// mutex while they exist.
#define PPMR_CAPABILITY(name) PPMR_THREAD_ATTRIBUTE(capability(name))
#define PPMR_SCOPED_CAPABILITY PPMR_THREAD_ATTRIBUTE(scoped_lockable)
// Annotates a function that the analysis skips. A comment at the function says why it is correct.
#define PPMR_NO_THREAD_SAFETY_ANALYSIS PPMR_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace ppmr {

// A std::mutex. Not recursive. Threads: any; the thread that locked it unlocks it.
class PPMR_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() PPMR_ACQUIRE() { native_.lock(); }
  void unlock() PPMR_RELEASE() { native_.unlock(); }
  bool try_lock() PPMR_TRY_ACQUIRE(true) { return native_.try_lock(); }

  // Makes the analysis assume that the calling thread holds this mutex, where it cannot see that.
  // Checks nothing at run time.
  void assert_held() const PPMR_ASSERT_CAPABILITY(this) {}

 private:
  friend class CondVar;

  std::mutex native_;
};

// A std::shared_mutex: one writer or several readers. Threads: any; see Mutex.
class PPMR_CAPABILITY("mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() PPMR_ACQUIRE() { native_.lock(); }
  void unlock() PPMR_RELEASE() { native_.unlock(); }
  void lock_shared() PPMR_ACQUIRE_SHARED() { native_.lock_shared(); }
  void unlock_shared() PPMR_RELEASE_SHARED() { native_.unlock_shared(); }

  void assert_held() const PPMR_ASSERT_CAPABILITY(this) {}
  void assert_held_shared() const PPMR_ASSERT_SHARED_CAPABILITY(this) {}

 private:
  std::shared_mutex native_;
};

// Holds a mutex from construction to destruction, except between unlock() and lock().
// Threads: one.
class PPMR_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PPMR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() PPMR_RELEASE() {
    if (holds_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Unlocks the mutex early, for example during I/O. unlock() requires that the mutex is held, and
  // lock() that it is not.
  void unlock() PPMR_RELEASE() {
    holds_ = false;
    mutex_.unlock();
  }
  void lock() PPMR_ACQUIRE() {
    mutex_.lock();
    holds_ = true;
  }

 private:
  Mutex& mutex_;
  bool holds_ = true;
};

// Holds a shared mutex for writing. Threads: one.
class PPMR_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) PPMR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~WriterLock() PPMR_RELEASE() { mutex_.unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// Holds a shared mutex for reading. Threads: one.
class PPMR_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) PPMR_ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex_.lock_shared();
  }
  // In a scoped class, PPMR_RELEASE() releases what the constructor acquired, shared or exclusive.
  ~ReaderLock() PPMR_RELEASE() {
    if (holds_) mutex_.unlock_shared();
  }
  void unlock() PPMR_RELEASE() {
    holds_ = false;
    mutex_.unlock_shared();
  }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
  bool holds_ = true;
};

// A std::condition_variable for a Mutex. Call wait*() with the mutex held; it returns with the
// mutex held. Without a predicate it may return early (spurious wake-up).
// Threads: any. All threads that wait at the same time pass the same mutex.
class CondVar {
 public:
  void notify_one() { native_.notify_one(); }
  void notify_all() { native_.notify_all(); }

  void wait(Mutex& mutex) PPMR_REQUIRES(mutex) {
    Adopted lock(mutex);
    native_.wait(lock.native());
  }
  template <typename Predicate>
  void wait(Mutex& mutex, Predicate done) PPMR_REQUIRES(mutex) {
    Adopted lock(mutex);
    native_.wait(lock.native(), std::move(done));
  }

  // Returns std::cv_status::timeout if `time` has passed.
  template <typename Duration>
  std::cv_status wait_for(Mutex& mutex, const Duration& time) PPMR_REQUIRES(mutex) {
    Adopted lock(mutex);
    return native_.wait_for(lock.native(), time);
  }
  // Returns the last result of `done`, which is false if `time` has passed before `done` returned
  // true.
  template <typename Duration, typename Predicate>
  bool wait_for(Mutex& mutex, const Duration& time, Predicate done) PPMR_REQUIRES(mutex) {
    Adopted lock(mutex);
    return native_.wait_for(lock.native(), time, std::move(done));
  }

  template <typename Time>
  std::cv_status wait_until(Mutex& mutex, const Time& time) PPMR_REQUIRES(mutex) {
    Adopted lock(mutex);
    return native_.wait_until(lock.native(), time);
  }
  template <typename Time, typename Predicate>
  bool wait_until(Mutex& mutex, const Time& time, Predicate done) PPMR_REQUIRES(mutex) {
    Adopted lock(mutex);
    return native_.wait_until(lock.native(), time, std::move(done));
  }

 private:
  // Wraps the held mutex in the std::unique_lock that std::condition_variable takes. The mutex
  // stays locked afterwards, even if the predicate throws.
  class Adopted {
   public:
    explicit Adopted(Mutex& mutex) : lock_(mutex.native_, std::adopt_lock) {}
    ~Adopted() { lock_.release(); }
    std::unique_lock<std::mutex>& native() { return lock_; }

   private:
    std::unique_lock<std::mutex> lock_;
  };

  std::condition_variable native_;
};

}  // namespace ppmr
