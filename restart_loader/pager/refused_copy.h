// What a refused copy of the kernel means (UFFDIO_COPY).
#pragma once

#include <cerrno>
#include <cstdint>

#include "processes/memory/page_index.h"

namespace ppmr {

enum class AfterRefusal {
  kReadEvents,  // the task is changing its memory: the pager must read that event first
  kTaskEnded,
  kCopyLess,   // the range has more than one mapping: copy a part of it
  kCopyAgain,  // the page has moved or was unmapped: the second try shows whether an event follows
  kSkipPage,   // the page is in place already, or the task has unmapped it
  kFail,
};

// `length_bytes`: of the refused copy. `is_second_try`: the kernel has refused the same page with
// ENOENT before, and no thread has read events since.
//
// From Linux 6.9 on, the kernel looks for the mapping before it looks for an unread event
// (mfill_atomic() of mm/userfaultfd.c). So if the task calls mremap(2) or munmap(2) just after the
// copy has begun, the copy fails with ENOENT, not with EAGAIN. If the pager gave up the page then,
// the task would read zeros at the new address. But each copy also begins with a look for unread
// events (userfaultfd_copy() of fs/userfaultfd.c). So the second try fails with EAGAIN if an event
// follows. If it fails with ENOENT, the memory has gone without an event, as after shmat(2) with
// SHM_REMAP.
inline AfterRefusal after_refusal(int error, uint64_t length_bytes, bool is_second_try) {
  switch (error) {
    case EAGAIN:
      return AfterRefusal::kReadEvents;
    case ESRCH:
      return AfterRefusal::kTaskEnded;
    case EEXIST:
      return AfterRefusal::kSkipPage;
    case ENOENT:
      if (length_bytes > kPageBytes) return AfterRefusal::kCopyLess;
      return is_second_try ? AfterRefusal::kSkipPage : AfterRefusal::kCopyAgain;
    default:
      return AfterRefusal::kFail;
  }
}

}  // namespace ppmr
