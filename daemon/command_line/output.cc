#include "daemon/command_line/output.h"

#include <csignal>
#include <cstdlib>

#include "daemon/command_line/terminal_text.h"

namespace ppmr {
namespace {

constexpr const char* kWide = "PPMR_WIDE";

}  // namespace

std::string without_controls(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::string_view colour = colour_at(text);
    size_t length = colour.empty() ? shown_bytes(text) : colour.size();
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

size_t columns_of_output(std::FILE* stream) {
  const char* wide = std::getenv(kWide);
  return wide != nullptr && *wide != '\0' ? 0 : columns_of_terminal(fileno(stream));
}

void keep_lines_whole() { setenv(kWide, "1", /*overwrite=*/1); }

void print_text(std::FILE* stream, std::string_view text) {
  const std::string shown = without_controls(text);
  const size_t columns = columns_of_output(stream);
  print_as_it_is(stream, columns == 0 ? shown : wrapped(shown, columns));
}

void ignore_sigpipe() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace ppmr
