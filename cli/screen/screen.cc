#include "cli/screen/screen.h"

#define NCURSES_NOMACROS 1
#include <fmt/format.h>
#include <ncurses.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>

namespace ppmr {
namespace {

constexpr short kGoodPair = 1;
constexpr short kBadPair = 2;

attr_t attributes_of(Tone tone, bool colours) {
  switch (tone) {
    case Tone::kTitle:
      return A_BOLD;
    case Tone::kFaint:
      return A_DIM;
    case Tone::kGood:
      return colours ? COLOR_PAIR(kGoodPair) : A_NORMAL;
    case Tone::kBad:
      return colours ? COLOR_PAIR(kBadPair) | A_BOLD : A_BOLD;
    default:
      return A_NORMAL;
  }
}

}  // namespace

ScreenLine cut(const ScreenLine& line, size_t columns, Charset charset) {
  ScreenLine result;
  size_t left = columns;
  for (size_t i = 0; i < line.size() && left > 0; ++i) {
    size_t rest = 0;
    for (size_t later = i + 1; later < line.size(); ++later) rest += columns_of(line[later].text);
    std::string text = line[i].text;
    // If this span fills the line and others follow, makes the span longer than the line, so that
    // cut() marks the missing text.
    if (columns_of(text) == left && rest > 0) text += " ";
    text = cut(text, left, charset);
    left -= columns_of(text);
    result.push_back({std::move(text), line[i].tone});
  }
  return result;
}

std::vector<ScreenLine> window_of(const std::vector<ScreenLine>& lines, size_t height,
                                  size_t& skipped) {
  if (lines.size() <= height) {
    skipped = 0;
    return lines;
  }
  if (height < 3) {
    skipped = 0;
    return {lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(height)};
  }
  const size_t room = height - 2;  // between the first line and the last one
  skipped = std::min(skipped, lines.size() - 1 - room);
  std::vector<ScreenLine> result = {lines.front()};
  const auto begin = lines.begin() + 1 + static_cast<std::ptrdiff_t>(skipped);
  result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(room));
  const size_t below = lines.size() - 1 - room - skipped;
  result.push_back(
      {{fmt::format("{} more lines above, {} below: arrow keys", skipped, below), Tone::kFaint}});
  return result;
}

struct Screen::State {
  SCREEN* screen = nullptr;
  bool colours = false;
  Charset charset = Charset::kAscii;
  bool has_input = false;
  sigset_t before{};
  UniqueFd signals;
  int key = 0;

  ~State() {
    if (screen != nullptr) {
      endwin();
      delscreen(screen);
    }
    // A signal that is still pending must not end the program now, before it returns its own exit
    // code.
    signals.reset();
    sigset_t own;
    sigemptyset(&own);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&own, number);
    const timespec now{};
    while (sigtimedwait(&own, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool next_key() {
    do {
      key = getch();
    } while (key == KEY_RESIZE);
    return key != ERR;
  }

  // Suspends the program as the shell expects it after Ctrl-Z: restores the terminal and stops
  // until SIGCONT.
  static void suspend() {
    endwin();
    raise(SIGTSTP);
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
    pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  }

  // Asks the kernel for the size of the terminal, because a SIGWINCH may have been lost.
  void follow_size() const {
    winsize size{};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
      return;
    }
    if (size.ws_row != getmaxy(stdscr) || size.ws_col != getmaxx(stdscr)) {
      resizeterm(size.ws_row, size.ws_col);
      clearok(stdscr, TRUE);
    }
  }
};

Screen::Screen(std::unique_ptr<State> state) : state_(std::move(state)) {}
Screen::Screen(Screen&&) noexcept = default;
Screen::~Screen() = default;

Result<Screen> Screen::open(bool colours, Charset charset) {
  auto state = std::make_unique<State>();
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP}) {
    sigaddset(&set, number);
  }
  pthread_sigmask(SIG_BLOCK, &set, &state->before);
  state->signals = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!state->signals) return system_failure("open a descriptor for", "signals");
  state->charset = charset;
  state->has_input = isatty(STDIN_FILENO) != 0;
  // This handler keeps ncurses from installing its own SIGTSTP handler. ncurses switches its
  // handler off while it draws, and would lose a Ctrl-Z at that time.
  signal(SIGTSTP, [](int) {});
  state->screen = newterm(nullptr, stdout, stdin);
  signal(SIGTSTP, SIG_DFL);
  if (state->screen == nullptr) {
    return failure(ENOTTY, "cannot use the terminal for a full-screen view");
  }
  set_term(state->screen);
  if (colours && has_colors()) {
    start_color();
    use_default_colors();
    init_pair(kGoodPair, COLOR_GREEN, -1);
    init_pair(kBadPair, COLOR_RED, -1);
    state->colours = true;
  }
  if (state->has_input) {
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    set_escdelay(25);
  }
  nodelay(stdscr, TRUE);
  curs_set(0);
  state->follow_size();
  return Screen(std::move(state));
}

size_t Screen::width() const { return static_cast<size_t>(std::max(getmaxx(stdscr), 1)); }
size_t Screen::height() const { return static_cast<size_t>(std::max(getmaxy(stdscr), 1)); }

void Screen::draw(const std::vector<ScreenLine>& lines) {
  state_->follow_size();
  erase();
  for (size_t y = 0; y < std::min(lines.size(), height()); ++y) {
    move(static_cast<int>(y), 0);
    for (const Span& span : cut(lines[y], width(), state_->charset)) {
      const attr_t attributes = attributes_of(span.tone, state_->colours);
      attron(static_cast<int>(attributes));
      // addstr() returns an error at the last column of the last line, although it has drawn the
      // text.
      (void)addstr(span.text.c_str());
      attroff(static_cast<int>(attributes));
    }
  }
  refresh();
}

Screen::Event Screen::wait(std::chrono::milliseconds time) {
  // ncurses may have read keys that it has not returned yet.
  if (state_->has_input && state_->next_key()) return Event::kKey;
  pollfd fds[] = {{state_->signals.get(), POLLIN, 0},
                  {state_->has_input ? STDIN_FILENO : -1, POLLIN, 0}};
  if (poll(fds, 2, static_cast<int>(time.count())) <= 0) return Event::kNone;
  signalfd_siginfo info;
  if (read(state_->signals.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGTSTP) {
      State::suspend();
    } else if (info.ssi_signo != SIGWINCH) {
      return Event::kInterrupted;
    }
    state_->follow_size();
    return Event::kChanged;
  }
  if (fds[1].revents == 0) return Event::kNone;
  if (state_->next_key()) return Event::kKey;
  return (fds[1].revents & (POLLHUP | POLLERR)) != 0 ? Event::kEnded : Event::kNone;
}

int Screen::key() const { return state_->key; }

}  // namespace ppmr
