// Finds the pages of read memory that must be sent.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ppmr {

// Finds the parts of `bytes` (whole pages) that are not zero. Parts with few zero pages between
// them become one part. Replaces the contents of `parts`.
void find_nonzero(std::span<const std::byte> bytes, std::vector<std::span<const std::byte>>& parts);

}  // namespace ppmr
