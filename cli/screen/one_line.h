// Names and command lines of processes in a line of output.
#pragma once

#include <string>
#include <string_view>

namespace ppmr {

// Returns the text with each line break shown as \x0a, so that a name or command line with line
// breaks cannot look like a line of ppmr. print_to() shows other control characters in this way.
inline std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (const char letter : text) {
    if (letter == '\n') {
      line += "\\x0a";
    } else {
      line += letter;
    }
  }
  return line;
}

}  // namespace ppmr
