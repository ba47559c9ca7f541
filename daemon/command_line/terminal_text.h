// Text for terminals: names from peers without control sequences, cut or broken at a number of
// columns.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ppmr {

// How the characters of a terminal are encoded.
enum class Charset { kAscii, kUtf8 };

// Sets the program's LC_CTYPE from the environment, and returns the encoding that the environment
// names. Threads: call before other threads start.
Charset charset_of_environment();

// Replaces each control character, each invalid UTF-8 sequence, and each character that the charset
// does not have, by '?'.
std::string printable(std::string_view text, Charset charset);
// Returns the number of bytes at the beginning of `text`, which is not empty, that a terminal shows
// as one character of UTF-8. Returns 0 if they are not UTF-8 or a control character. Threads: any.
size_t shown_bytes(std::string_view text);
// Returns the width of printable text on a terminal. Colours have none.
size_t columns_of(std::string_view text);
// Cuts printable text. The last character of a cut text shows that something is missing.
std::string cut(const std::string& text, size_t columns, Charset charset);
// Breaks each line that is longer than this number of columns: at its last space that fits, else in
// the middle of a word. The line continues below its text if a label and two spaces stand before
// it, else four columns to the right of its beginning, or at the same column if the line is itself
// indented by more. Tabs become spaces. Threads: any.
std::string wrapped(std::string_view text, size_t columns);
// Returns the width of the terminal behind this descriptor; 0: it is no terminal, so lines stay
// whole.
size_t columns_of_terminal(int fd);
// The escape sequence of a colour at the beginning of `text`; empty: there is none.
std::string_view colour_at(std::string_view text);
// Cuts a text, or fills it with spaces, to this number of columns.
std::string fitted(const std::string& text, size_t columns, Charset charset);

}  // namespace ppmr
