// The name of a deleted file while its tmpfs is built again and restored: in the root of that
// tmpfs, followed by its inode at the source. Also for the library in CRIU: no C++ runtime library.
#pragma once

#include <cstddef>

namespace ppmr {

inline constexpr const char* kDeletedName = ".ppmr-deleted-";
inline constexpr size_t kDeletedNameMaxBytes = 40;

}  // namespace ppmr
