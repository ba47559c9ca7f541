// Sends requests to many hosts at once.
#pragma once

#include <cstddef>
#include <functional>

#include "base/result.h"

namespace ppmr {

// Calls `work` for each number below `count`, on at most 128 threads, and on fewer if the system
// has no more. Returns the first error; an exception of `work` is an error, too.
Status for_each_in_parallel(size_t count, const std::function<Status(size_t)>& work);

}  // namespace ppmr
