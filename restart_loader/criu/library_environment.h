// What the library in CRIU (criu_library.h) finds in CRIU's environment.
#pragma once

namespace ppmr {

inline constexpr const char* kPreload = "LD_PRELOAD";
inline constexpr const char* kHidesMemory = "PPMR_HIDES_MEMORY";      // "1": see PageList::kOfPpmr
inline constexpr const char* kMemoryApartList = "PPMR_MEMORY_APART";  // a path, memory_apart.h
inline constexpr const char* kInheritedFile = "PPMR_INHERITED";  // a path, inherited_calls.cc

}  // namespace ppmr
