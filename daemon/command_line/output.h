// Output of commands that must continue when their terminal has gone. Names come from processes,
// peers and files, and may hold control sequences: none reaches a terminal.
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

// Writes the text to the stream at once, as it is. Drops text that it cannot write because the
// terminal or the reader of the pipe has gone: fmt::print() would throw, which must not end a
// migration. The caller ignores SIGPIPE (ignore_sigpipe()). Threads: any.
void print_as_it_is(std::FILE* stream, std::string_view text);

// Writes the formatted text without_controls().
template <typename... Args>
void print_to(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  print_as_it_is(stream, without_controls(fmt::format(format, std::forward<Args>(args)...)));
}

// Ignores SIGPIPE in the whole process. Programs that the process starts through spawn() get the
// default action back.
void ignore_sigpipe();

}  // namespace ppmr
