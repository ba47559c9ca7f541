// Copies memory of which only a little was ever written.
#pragma once

#include <cstddef>

namespace ppmr {

// Copies like memcpy(3), but leaves out pages of `from` that were never written. There, `to` keeps
// what it holds: give it new memory, which is zero as well. If the kernel does not tell which pages
// were written, all are copied. Threads: any, for different memory.
void copy_sparse(void* to, const void* from, size_t bytes);

}  // namespace ppmr
