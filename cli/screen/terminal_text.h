// Text for terminals: names from peers without control sequences, cut to a number of columns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ppmr {

// How the characters of a terminal are encoded.
enum class Charset { kAscii, kUtf8 };

// Sets the program's LC_CTYPE from the environment, and returns the encoding that it names.
// Threads: call it before others start.
Charset charset_of_environment();

// Replaces control characters, invalid UTF-8, and what the charset does not have, each by '?'.
std::string printable(std::string_view text, Charset charset);
// The width of printable text on a terminal.
size_t columns_of(const std::string& text);
// Cuts printable text; a last character shows that something is missing.
std::string cut(const std::string& text, size_t columns, Charset charset);
// Cuts or fills with spaces.
std::string fitted(const std::string& text, size_t columns, Charset charset);

}  // namespace ppmr
