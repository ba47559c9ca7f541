// What the library in CRIU (dump_library.h) finds in CRIU's environment.
#pragma once

namespace ppmr {

inline constexpr const char* kPreload = "LD_PRELOAD";
inline constexpr const char* kHidesMemory = "PPMR_HIDES_MEMORY";  // "1": see PageList::kOfPpmr

}  // namespace ppmr
