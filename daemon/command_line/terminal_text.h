// Text for terminals: removes control sequences from names of peers, and cuts or breaks lines at a
// number of columns.
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

// Replaces by '?': control characters, invalid UTF-8 sequences, and characters that the charset
// does not have.
std::string printable(std::string_view text, Charset charset);
// Returns the number of bytes of the first character of `text`, which must not be empty. Returns 0
// if the text begins with a control character or with invalid UTF-8. Threads: any.
size_t shown_bytes(std::string_view text);
// Returns the width of printable text on a terminal. Escape sequences of colours have no width.
size_t columns_of(std::string_view text);
// Cuts printable text. The last character of a cut text shows that something is missing.
std::string cut(const std::string& text, size_t columns, Charset charset);
// Breaks each line that is longer than this number of columns: at the last space that fits, or else
// in the middle of a word. If the line begins with a label and two spaces, it continues below the
// text after them. Otherwise it continues four columns to the right of its beginning, or, if it is
// indented by more than four columns, at its beginning. Tabs become spaces. Threads: any.
std::string wrapped(std::string_view text, size_t columns);
// Returns the width of the terminal behind this descriptor; 0: the descriptor is no terminal, so
// lines stay whole.
size_t columns_of_terminal(int fd);
// Returns the escape sequence of a colour at the beginning of `text`; empty: there is none.
std::string_view colour_at(std::string_view text);
// Cuts a text, or fills it with spaces, to this number of columns.
std::string fitted(const std::string& text, size_t columns, Charset charset);

}  // namespace ppmr
