// Requests to many hosts at once.
#pragma once

#include <cstddef>
#include <functional>

#include "base/result.h"

namespace ppmr {

// Calls `work` for each of the first `count` numbers, on as many threads as the system has left, at
// most 128. Returns the first error; an exception of `work` is an error, too.
Status for_each_in_parallel(size_t count, const std::function<Status(size_t)>& work);

}  // namespace ppmr
