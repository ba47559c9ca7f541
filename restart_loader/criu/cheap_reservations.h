// Lets CRIU dump reserved address space at no cost.
//
// A lazy dump takes as long as the private mappings of a process are large, also where they hold no
// pages: 1 TiB reserved cost 10 s, with the process frozen, and 8 TiB failed. Java, .NET, Node.js
// with WebAssembly, MariaDB and sanitizers reserve that much. The cause is one copy in CRIU: of a
// long list that is almost empty. CRIU loads a small library that leaves out the part of the list
// that was never written (cheap_reservations_library.cc).
//
// Rejected: to dump such processes without --lazy-pages, because then their memory travels while
// they are frozen; to unmap the reservations for the dump, because a killed dump would leave the
// process without them; a changed CRIU, because ppmr works with the one that is there.
#pragma once

#include "base/result.h"

namespace ppmr {

// Makes the program that this process executes next load the library, unless LD_PRELOAD is already
// set. A CRIU with file capabilities or without glibc does not load it, and takes the time. The
// caller is the process that becomes CRIU. Errors: of memfd_create(2), write(2), dup2(2) and
// setenv(3).
Status preload_cheap_reservations();

}  // namespace ppmr
