// Output of commands that must continue even when their terminal has gone. Names come from
// processes, peers and files, and may hold control sequences, which must not reach a terminal. On a
// terminal no line is wider than the terminal. In a file or pipe, and with --wide, lines stay
// whole.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace ppmr {

// Replaces control characters, and bytes that are not UTF-8, by their number: \x1b. Keeps line
// breaks, tabs, and the colours of TerminalStyle.
std::string without_controls(std::string_view text);

// Writes the text to the stream as it is, and flushes the stream. If the terminal or the reader of
// the pipe has gone, drops the text: fmt::print() would throw, which must not end a migration. The
// caller must have called ignore_sigpipe(). Threads: any.
void print_as_it_is(std::FILE* stream, std::string_view text);

// Returns the columns that lines and tables may have on this stream; 0: any number. Threads: any.
size_t columns_of_output(std::FILE* stream);
// Implements --wide: from now on neither this process nor a program that it starts wraps or cuts
// lines. Threads: call before other threads start.
void keep_lines_whole();

// Writes the text without_controls(), and wrapped() on a terminal.
void print_text(std::FILE* stream, std::string_view text);

// Writes the formatted text with print_text(). The text must be whole lines.
template <typename... Args>
void print_to(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  print_text(stream, fmt::format(format, std::forward<Args>(args)...));
}

// Writes the formatted text without_controls(), for programs: it breaks no lines.
template <typename... Args>
void print_whole(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  print_as_it_is(stream, without_controls(fmt::format(format, std::forward<Args>(args)...)));
}

// Ignores SIGPIPE in the whole process. Programs that the process starts through spawn() get the
// default action back.
void ignore_sigpipe();

}  // namespace ppmr
