#include "cli/screen/terminal_text.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <clocale>
#include <cstdint>
#include <optional>

namespace ppmr {
namespace {

struct Character {
  size_t size_bytes = 1;
  uint32_t code = 0;
};

// Returns the character at the start of `text`, which is not empty. Returns nullopt if it is not
// UTF-8 (RFC 3629).
std::optional<Character> decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return Character{1, byte(0)};
  const size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < size) return std::nullopt;
  uint32_t code = byte(0) & (0xffu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const bool overlong = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xd800 && code < 0xe000;
  if (overlong || is_surrogate || code > 0x10ffff) return std::nullopt;
  return Character{size, code};
}

size_t columns_of(const Character& character) {
  if (character.code < 0x80) return 1;
  const int width = wcwidth(static_cast<wchar_t>(character.code));
  return width < 0 ? 1 : static_cast<size_t>(width);
}

bool is_control(uint32_t code) {
  const bool is_direction = (code >= 0x200e && code <= 0x200f) ||
                            (code >= 0x202a && code <= 0x202e) ||
                            (code >= 0x2066 && code <= 0x2069);
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || is_direction;
}

}  // namespace

Charset charset_of_environment() {
  std::setlocale(LC_CTYPE, "");
  return std::string_view(nl_langinfo(CODESET)) == "UTF-8" ? Charset::kUtf8 : Charset::kAscii;
}

std::string printable(std::string_view text, Charset charset) {
  std::string result;
  while (!text.empty()) {
    const auto character = decode(text);
    const size_t size = character ? character->size_bytes : 1;
    const bool shown = character && !is_control(character->code) &&
                       (charset == Charset::kUtf8 || character->code < 0x80);
    result += shown ? std::string(text.substr(0, size)) : "?";
    text.remove_prefix(size);
  }
  return result;
}

size_t columns_of(const std::string& text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const auto character = decode(std::string_view(text).substr(at)).value_or(Character{1, '?'});
    columns += columns_of(character);
    at += character.size_bytes;
  }
  return columns;
}

std::string cut(const std::string& text, size_t columns, Charset charset) {
  if (columns_of(text) <= columns) return text;
  if (columns == 0) return "";
  size_t end = 0;
  for (size_t used = 0; end < text.size();) {
    const auto character = decode(std::string_view(text).substr(end)).value_or(Character{1, '?'});
    used += columns_of(character);
    if (used > columns - 1) break;
    end += character.size_bytes;
  }
  return text.substr(0, end) + (charset == Charset::kUtf8 ? "…" : ">");
}

std::string wrapped(std::string_view text, size_t columns, size_t indent) {
  if (columns <= 2 * indent + 1) return std::string(text);  // too narrow for any rule
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    for (bool is_first = true; !line.empty(); is_first = false) {
      const size_t room = is_first ? columns : columns - indent;
      if (!is_first) result += "\n" + std::string(indent, ' ');
      size_t fits = 0;  // bytes
      size_t space = 0;
      for (size_t used = 0; fits < line.size();) {
        const auto character = decode(line.substr(fits)).value_or(Character{1, '?'});
        used += columns_of(character);
        if (used > room) break;
        // A line does not break in its own indentation.
        if (line[fits] == ' ' && line.find_first_not_of(' ') < fits) space = fits;
        fits += character.size_bytes;
      }
      // A line that ends exactly at the edge is whole; so is one whose next character is a space.
      const bool breaks = fits < line.size() && line[fits] != ' ' && space > 0;
      const size_t taken = std::max<size_t>(breaks ? space : fits, 1);
      std::string_view shown = line.substr(0, taken);
      while (shown.ends_with(' ')) shown.remove_suffix(1);
      result += shown;
      line.remove_prefix(taken);
      while (line.starts_with(' ')) line.remove_prefix(1);
    }
    if (end < text.size()) result += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

size_t columns_of_terminal(int fd) {
  winsize size{};
  if (isatty(fd) == 0) return 0;
  constexpr size_t kUsual = 80;
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

std::string fitted(const std::string& text, size_t columns, Charset charset) {
  const std::string shown = cut(text, columns, charset);
  const size_t used = columns_of(shown);
  return shown + std::string(columns > used ? columns - used : 0, ' ');
}

}  // namespace ppmr
