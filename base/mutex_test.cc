#include "base/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <type_traits>
#include <vector>

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// Returns whether another thread can lock the mutex now.
bool is_free(Mutex& mutex) {
  bool locked = false;
  std::thread([&] {
    locked = mutex.try_lock();
    if (locked) mutex.unlock();
  }).join();
  return locked;
}

bool can_read(SharedMutex& mutex) {
  std::atomic<bool> read = false;
  std::thread reader([&] {
    ReaderLock lock(mutex);
    read = true;
  });
  reader.join();
  return read;
}

static_assert(!std::is_copy_constructible_v<Mutex> && !std::is_copy_constructible_v<MutexLock>);
static_assert(sizeof(Mutex) == sizeof(std::mutex), "the annotations cost memory");
static_assert(sizeof(CondVar) == sizeof(std::condition_variable), "the annotations cost memory");

TEST(Mutex, ExcludesOtherThreads) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) {
        MutexLock lock(mutex);
        count = count + 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40'000);
}

TEST(Mutex, TryLockFailsWhileAnotherThreadHoldsIt) {
  Mutex mutex;
  EXPECT_TRUE(is_free(mutex));
  mutex.lock();
  EXPECT_FALSE(is_free(mutex));
  mutex.unlock();
  EXPECT_TRUE(is_free(mutex));
}

TEST(MutexLock, UnlocksAtTheEndOfItsScope) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    EXPECT_FALSE(is_free(mutex));
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(MutexLock, CanDropTheLockAndTakeItAgain) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    lock.unlock();
    EXPECT_TRUE(is_free(mutex));
    lock.lock();
    EXPECT_FALSE(is_free(mutex));
  }
  EXPECT_TRUE(is_free(mutex));
}

TEST(MutexLock, ThatWasDroppedUnlocksNothing) {
  Mutex mutex;
  {
    MutexLock dropped(mutex);
    dropped.unlock();
    mutex.lock();  // stands for another holder
  }
  EXPECT_FALSE(is_free(mutex));
  mutex.unlock();
}

TEST(SharedMutex, ReadersShareIt) {
  SharedMutex mutex;
  ReaderLock lock(mutex);
  EXPECT_TRUE(can_read(mutex));
}

TEST(SharedMutex, WriterExcludesReaders) {
  SharedMutex mutex;
  std::atomic<bool> written = false;
  std::thread reader;
  {
    WriterLock lock(mutex);
    reader = std::thread([&] {
      ReaderLock read(mutex);
      EXPECT_TRUE(written);
    });
    std::this_thread::sleep_for(milliseconds(20));
    written = true;
  }
  reader.join();
}

TEST(CondVar, WaitReturnsAfterANotificationWithTheLockHeld) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  std::thread notifier([&] {
    MutexLock lock(mutex);
    ready = true;
    changed.notify_one();
  });
  {
    MutexLock lock(mutex);
    while (!ready) changed.wait(mutex);
    EXPECT_FALSE(is_free(mutex));
  }
  EXPECT_TRUE(is_free(mutex));
  notifier.join();
}

TEST(CondVar, WaitWithAPredicateReturnsOnceItIsTrue) {
  Mutex mutex;
  CondVar changed;
  int steps = 0;
  std::thread notifier([&] {
    for (int i = 0; i < 3; ++i) {
      MutexLock lock(mutex);
      ++steps;
      changed.notify_all();
    }
  });
  {
    MutexLock lock(mutex);
    changed.wait(mutex, [&] { return steps == 3; });
    EXPECT_EQ(steps, 3);
    EXPECT_FALSE(is_free(mutex));
  }
  notifier.join();
}

TEST(CondVar, WaitForAndWaitUntilEndInTime) {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(mutex);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(changed.wait_for(mutex, milliseconds(20), [] { return false; }));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(20));
  EXPECT_FALSE(changed.wait_until(mutex, start, [] { return false; }));
  EXPECT_EQ(changed.wait_until(mutex, start), std::cv_status::timeout);
  EXPECT_TRUE(changed.wait_for(mutex, milliseconds(0), [] { return true; }));
  EXPECT_FALSE(is_free(mutex));
}

TEST(CondVar, KeepsTheLockIfThePredicateThrows) {
  Mutex mutex;
  CondVar changed;
  {
    MutexLock lock(mutex);
    EXPECT_THROW(changed.wait(mutex, []() -> bool { throw 1; }), int);
    EXPECT_FALSE(is_free(mutex));
  }
  EXPECT_TRUE(is_free(mutex));
}

}  // namespace
}  // namespace ppmr
