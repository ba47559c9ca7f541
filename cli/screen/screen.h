// A full-screen view on the terminal of stdin and stdout, with ncurses. It uses the terminal's
// alternate screen, so that the terminal shows the earlier text again at the end.
#pragma once

#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "daemon/command_line/terminal_text.h"

namespace ppmr {

enum class Tone { kPlain, kTitle, kFaint, kGood, kBad };

struct Span {
  std::string text;  // contains only printable characters
  Tone tone = Tone::kPlain;
};
using ScreenLine = std::vector<Span>;

// Cuts a line to this many columns.
ScreenLine cut(const ScreenLine& line, size_t columns, Charset charset);

// Returns the lines for a screen of `height`: the first line always, and the other lines without
// the first `skipped` of them. If lines do not fit, the last line shows how many are missing.
// Reduces `skipped` to the possible maximum.
std::vector<ScreenLine> window_of(const std::vector<ScreenLine>& lines, size_t height,
                                  size_t& skipped);

// Owns the terminal: the destructor restores it. Threads: one; all other threads must block all
// signals.
class Screen {
 public:
  enum class Event { kNone, kChanged, kKey, kEnded, kInterrupted };

  // Blocks SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH and SIGTSTP: wait() handles them. Errors:
  // ENOTTY if ncurses cannot use the terminal.
  static Result<Screen> open(bool colours, Charset charset);
  Screen(Screen&&) noexcept;
  Screen& operator=(Screen&&) = delete;
  ~Screen();

  size_t width() const;
  size_t height() const;
  void draw(const std::vector<ScreenLine>& lines);
  // Waits for an event. kEnded: the terminal no longer exists. kInterrupted: SIGINT, SIGTERM,
  // SIGHUP or SIGQUIT arrived. kKey: key() returns the key. kChanged: the terminal has another
  // size, or the program was suspended; the caller draws again.
  Event wait(std::chrono::milliseconds time);
  int key() const;  // returns a character, or one of ncurses's KEY_ numbers

 private:
  struct State;
  explicit Screen(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ppmr
