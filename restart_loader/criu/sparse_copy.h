// Copies memory of which only a little was ever written.
#pragma once

#include <cstddef>

namespace ppmr {

// Copies like memcpy(3), but leaves out pages of `from` that were never written. In place of these
// pages, `to` keeps its content, so it must be new memory, which is zero as well. If the kernel
// does not show which pages were written, copies all pages. Threads: any, for different memory.
void copy_sparse(void* to, const void* from, size_t bytes);

}  // namespace ppmr
