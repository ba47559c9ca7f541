// The small library that CRIU loads (LD_PRELOAD). It replaces functions of libc that CRIU calls, so
// that CRIU leaves out memory that travels apart from its images:
//
//   dump      hidden_memory        CRIU sees no pages that ppmr itself lists (hidden_memory.h)
//             cheap_reservations   CRIU does not copy the empty part of a large list
//             memory_apart         CRIU sees no content of shared memory that ppmr has sent
//   restore   memory_apart         CRIU gets this memory, filled, where it asks for an empty one
//             inherited_calls      CRIU sets for itself what the restored tasks inherit from it
//
// Without the library a dump is correct, but takes longer. A restore of images without their shared
// memory fails (memory_apart.h). Rejected: a changed CRIU, because ppmr works with the CRIU that is
// installed.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// The file of the work directory that inherited_calls.cc reads.
inline constexpr const char* kInherited = "inherited";

// Which program's list of the private anonymous memory is valid.
enum class PageList {
  kOfCriu,  // a dump into images; a restore
  kOfPpmr,  // the page index: without one, the memory would be lost
};

// Makes the program that this process executes next load the library, unless LD_PRELOAD is already
// set. A CRIU with file capabilities or without glibc does not load it. `work_directory`: an
// absolute path; the directory may have a list of shared memory (memory_apart.h) and the file
// kInherited. An empty path: there is no directory. The caller is the process that becomes CRIU.
// Errors: those of memfd_create(2), write(2), dup2(2) and setenv(3).
Status preload_criu_library(PageList list, const std::string& work_directory);

}  // namespace ppmr
