#include "daemon/command_line/terminal_text.h"

#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdint>
#include <optional>

namespace ppmr {
namespace {

struct Character {
  size_t size_bytes = 1;
  uint32_t code = 0;
};

// Returns the character at the start of `text`, which must not be empty. Returns nullopt if the
// text does not begin with valid UTF-8 (RFC 3629).
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

// Returns the width of a character; -1: the character is not known. Sets the locale that wcwidth()
// needs only for this thread, and only for the call.
int width_of(uint32_t code) {
  static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (utf8 == nullptr) return 1;
  const locale_t before = uselocale(utf8);
  const int width = wcwidth(static_cast<wchar_t>(code));
  uselocale(before);
  return width;
}

size_t width_of(const Character& character) {
  if (character.code < 0x80) return 1;
  const int width = width_of(character.code);
  return width < 0 ? 1 : static_cast<size_t>(width);
}

constexpr std::array<std::string_view, 4> kColours = {"\x1b[31m", "\x1b[32m", "\x1b[33m",
                                                      "\x1b[0m"};

// How a terminal shows the bytes at the beginning of a text.
struct Shown {
  size_t size_bytes = 1;
  size_t columns = 1;
};

Shown shown_at(std::string_view text) {
  if (const std::string_view colour = colour_at(text); !colour.empty()) return {colour.size(), 0};
  const Character character = decode(text).value_or(Character{1, '?'});
  return {character.size_bytes, width_of(character)};
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

std::string_view colour_at(std::string_view text) {
  for (const std::string_view colour : kColours) {
    if (text.starts_with(colour)) return colour;
  }
  return "";
}

size_t shown_bytes(std::string_view text) {
  const auto character = decode(text);
  if (!character) return 0;
  const uint32_t code = character->code;
  if (code == '\n' || code == '\t') return 1;
  const bool is_unknown = code >= 0x80 && width_of(code) < 0;
  return is_control(code) || is_unknown ? 0 : character->size_bytes;
}

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    const Shown shown = shown_at(text);
    columns += shown.columns;
    text.remove_prefix(shown.size_bytes);
  }
  return columns;
}

std::string cut(const std::string& text, size_t columns, Charset charset) {
  if (columns_of(text) <= columns) return text;
  if (columns == 0) return "";
  size_t end = 0;
  for (size_t used = 0; end < text.size();) {
    const Shown shown = shown_at(std::string_view(text).substr(end));
    used += shown.columns;
    if (used > columns - 1) break;
    end += shown.size_bytes;
  }
  return text.substr(0, end) + (charset == Charset::kUtf8 ? "…" : ">");
}

namespace {

constexpr size_t kColumnsMin = 20;  // wrapped() breaks no lines on a narrower terminal
constexpr size_t kIndent = 4;

// Returns the column at which a broken line continues.
size_t indent_of(std::string_view line, size_t columns) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.find("  ", begin);
  if (gap != std::string_view::npos) {
    const size_t text = line.find_first_not_of(' ', gap);
    const size_t shown = text == std::string_view::npos ? 0 : columns_of(line.substr(0, text));
    if (shown > 0 && shown <= columns / 2) return shown;
  }
  const bool continues = begin > kIndent;  // this line continues the text of a label above it
  return std::min(continues ? begin : begin + kIndent, columns / 2);
}

// Returns the number of bytes of `line` that fit. Ends at a space if there is one after the
// indentation.
size_t bytes_that_fit(std::string_view line, size_t columns) {
  const size_t begin = line.find_first_not_of(' ');
  size_t fits = 0;
  size_t space = 0;
  for (size_t used = 0; fits < line.size();) {
    const Shown shown = shown_at(line.substr(fits));
    used += shown.columns;
    if (used > columns) break;
    if (line[fits] == ' ' && fits > begin) space = fits;
    fits += shown.size_bytes;
  }
  // A line need not be broken at an earlier space if it ends at the edge, or if a space follows
  // there.
  const bool breaks = fits < line.size() && line[fits] != ' ' && space > 0;
  return std::max<size_t>(breaks ? space : fits, 1);
}

}  // namespace

std::string wrapped(std::string_view text, size_t columns) {
  if (columns < kColumnsMin) return std::string(text);
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string whole(text.substr(0, end));
    std::replace(whole.begin(), whole.end(), '\t', ' ');
    std::string_view line = whole;
    const size_t indent = indent_of(line, columns);
    for (bool is_first = true; !line.empty(); is_first = false) {
      if (!is_first) result += "\n" + std::string(indent, ' ');
      const size_t taken = bytes_that_fit(line, is_first ? columns : columns - indent);
      std::string_view shown = line.substr(0, taken);
      line.remove_prefix(taken);
      if (line.empty()) {
        result += shown;  // keeps spaces at the end, because the text may be a prompt
        break;
      }
      while (shown.ends_with(' ')) shown.remove_suffix(1);
      result += shown;
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
