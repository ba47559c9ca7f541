// The small library that CRIU loads for a dump (LD_PRELOAD). It replaces functions of libc that
// CRIU calls, so that a lazy dump costs no time for memory that it leaves out anyway:
//
//   hidden_memory        CRIU sees no pages where ppmr has the list (hidden_memory.h)
//   cheap_reservations   a list of CRIU that is almost empty is not copied as a whole
//
// Without the library a dump is as right, but takes longer. Rejected: a changed CRIU, because ppmr
// works with the one that is there.
#pragma once

#include "base/result.h"

namespace ppmr {

// Whose list of the private anonymous memory counts.
enum class PageList {
  kOfCriu,  // a dump into images
  kOfPpmr,  // the page index: without one, the memory would be lost
};

// Makes the program that this process executes next load the library, unless LD_PRELOAD is already
// set. A CRIU with file capabilities or without glibc does not load it. The caller is the process
// that becomes CRIU. Errors: of memfd_create(2), write(2), dup2(2) and setenv(3).
Status preload_dump_library(PageList list);

}  // namespace ppmr
