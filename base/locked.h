// Holds a secret in a memory page of its own. The kernel neither swaps the page out nor dumps it,
// and the destructor cleanses it.
// A process may lock a limited amount of memory (RLIMIT_MEMLOCK, 8 MiB for services and users of
// Debian 12). Beyond the limit the object still works, but the kernel can swap it out: to refuse
// connections would be worse. Each object takes at least one page, so use this class for keys,
// which are few.
#pragma once

#include <string.h>
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>

namespace ppmr {

// Threads: the same as for T.
template <typename T>
class Locked {
  static_assert(std::is_trivially_copyable_v<T>, "it is cleansed as bytes");

 public:
  // Throws std::bad_alloc.
  Locked() {
    void* const memory =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    is_locked_ = ::mlock2(memory, sizeof(T), 0) == 0;  // AddressSanitizer ignores mlock(2)
    ::madvise(memory, sizeof(T), MADV_DONTDUMP);
    value_ = new (memory) T{};
  }
  explicit Locked(const T& value) : Locked() { *value_ = value; }
  ~Locked() {
    ::explicit_bzero(value_, sizeof(T));
    ::munmap(value_, sizeof(T));  // also unlocks the memory
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return value_; }
  const T* operator->() const { return value_; }
  bool is_locked() const { return is_locked_; }

 private:
  T* value_ = nullptr;  // at the beginning of a page
  bool is_locked_ = false;
};

}  // namespace ppmr
