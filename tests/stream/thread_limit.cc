#include "tests/stream/thread_limit.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <climits>

namespace {

std::atomic<int> threads_left = INT_MAX;

}  // namespace

// Replaces the function of the C library.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left-- <= 0) return EAGAIN;
  return create(thread, attributes, start, argument);
}

namespace ppmr {

ThreadLimit::ThreadLimit(int limit) { threads_left = limit; }
ThreadLimit::~ThreadLimit() { threads_left = INT_MAX; }
bool ThreadLimit::reached() const { return threads_left < 0; }

}  // namespace ppmr
