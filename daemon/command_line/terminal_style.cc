#include "daemon/command_line/terminal_style.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "daemon/command_line/output.h"

namespace ppmr {

bool may_move_cursor(bool is_terminal, const char* term) {
  const std::string_view name = term != nullptr ? term : "";
  return is_terminal && !name.empty() && name != "dumb";
}

bool may_colour(bool is_terminal, const char* no_color, const char* term) {
  const bool forbidden = no_color != nullptr && *no_color != '\0';
  return !forbidden && may_move_cursor(is_terminal, term);
}

TerminalStyle TerminalStyle::of(int fd) {
  const bool is_terminal = isatty(fd) != 0;
  const char* term = std::getenv("TERM");
  return {may_move_cursor(is_terminal, term),
          may_colour(is_terminal, std::getenv("NO_COLOR"), term)};
}

std::string TerminalStyle::coloured(const std::string& text, const char* code) const {
  return colours_ ? "\x1b[" + std::string(code) + "m" + text + "\x1b[0m" : text;
}

std::string manual_section(ExitCode exit_code) {
  switch (exit_code) {
    case ExitCode::kMountFailed:
    case ExitCode::kPeerFailed:
    case ExitCode::kNotMounted:
    case ExitCode::kDaemonSilent:
    case ExitCode::kCheckpointFailed:
    case ExitCode::kTimedOut:
    case ExitCode::kRestoreFailed:
      return "TROUBLESHOOTING in ppmr(8)";
    case ExitCode::kPagesLost:
    case ExitCode::kMigrationAborted:
    case ExitCode::kMigrationOpen:
      return "TROUBLESHOOTING in ppmr-migrate(8)";
    default:
      return "";
  }
}

void print_error(const std::string& name, const std::string& message) {
  const std::string who = TerminalStyle::of(STDERR_FILENO).bad(name + ":");
  print_to(stderr, "{} {}\n", who, message);
}

void print_manual_section(const std::string& name, ExitCode exit_code) {
  const std::string section = manual_section(exit_code);
  if (section.empty()) return;
  print_to(stderr, "{}: exit status {}: see {}\n", name, to_int(exit_code), section);
}

}  // namespace ppmr
