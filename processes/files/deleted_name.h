// The name that a deleted file has while ppmr rebuilds its tmpfs and CRIU restores it. The file is
// in the root of the tmpfs, and its inode at the source follows the name. The library in CRIU
// includes this header, so it must not need a C++ runtime library.
#pragma once

#include <cstddef>

namespace ppmr {

inline constexpr const char* kDeletedName = ".ppmr-deleted-";
inline constexpr size_t kDeletedNameMaxBytes = 40;

}  // namespace ppmr
