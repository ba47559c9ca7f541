// Numbers of things in sentences.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

namespace ppmr {

// Returns "1 round" or "2 rounds", "1 process" or "2 processes".
inline std::string counted(uint64_t number, std::string_view word) {
  const char* ending = number == 1 ? "" : word.ends_with('s') ? "es" : "s";
  return fmt::format("{} {}{}", number, word, ending);
}

}  // namespace ppmr
