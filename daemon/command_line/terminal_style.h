// Decides for all commands whether they may write escape sequences to a stream.
#pragma once

#include <string>

#include "base/exit_code.h"

namespace ppmr {

// Returns whether output may move the cursor: only on a terminal whose TERM is set and not "dumb".
bool may_move_cursor(bool is_terminal, const char* term);
// Returns whether text may have colours. A variable NO_COLOR that is not empty forbids them
// (https://no-color.org).
bool may_colour(bool is_terminal, const char* no_color, const char* term);

// Threads: any.
class TerminalStyle {
 public:
  // Returns the style for a descriptor, as this process's environment allows it.
  static TerminalStyle of(int fd);
  TerminalStyle(bool moves_cursor, bool colours) : moves_cursor_(moves_cursor), colours_(colours) {}

  bool moves_cursor() const { return moves_cursor_; }
  bool colours() const { return colours_; }
  std::string bad(const std::string& text) const { return coloured(text, "31"); }       // red
  std::string doubtful(const std::string& text) const { return coloured(text, "33"); }  // yellow
  std::string good(const std::string& text) const { return coloured(text, "32"); }      // green

 private:
  std::string coloured(const std::string& text, const char* code) const;

  bool moves_cursor_;
  bool colours_;
};

// Returns the section of a manual page about this exit code, for example "TROUBLESHOOTING in
// ppmr-migrate(8)". Empty if there is no such section.
std::string manual_section(ExitCode exit_code);

// Prints "NAME: message" to stderr, without a reference to the manual.
void print_error(const std::string& name, const std::string& message);
// Prints "NAME: exit status 11: see ..." to stderr if a manual page has a section about this exit
// code.
void print_manual_section(const std::string& name, ExitCode exit_code);

}  // namespace ppmr
