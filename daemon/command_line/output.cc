#include "daemon/command_line/output.h"

#include <array>
#include <csignal>

namespace ppmr {
namespace {

constexpr std::array<std::string_view, 4> kColours = {"\x1b[31m", "\x1b[32m", "\x1b[33m",
                                                      "\x1b[0m"};

// Returns the number of bytes at the beginning of `text` that are one character of UTF-8 and no
// control character; 0 if they are not.
size_t shown_bytes(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return (first >= 0x20 && first != 0x7f) || first == '\n' || first == '\t';
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  const bool is_control = first == 0xc2 && byte(1) < 0xa0;  // U+0080 to U+009F
  return is_control ? 0 : length;
}

}  // namespace

std::string without_controls(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    size_t length = shown_bytes(text);
    for (const std::string_view colour : kColours) {
      if (text.starts_with(colour)) length = colour.size();
    }
    if (length == 0) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
      length = 1;
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return shown;
}

void print_as_it_is(std::FILE* stream, std::string_view text) {
  (void)std::fwrite(text.data(), 1, text.size(), stream);
  (void)std::fflush(stream);
}

void ignore_sigpipe() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace ppmr
