// Output of commands that must continue when their terminal has gone.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace ppmr {

// Writes the text to the stream at once. Drops text that it cannot write because the terminal or
// the reader of the pipe has gone: fmt::print() would throw, which must not end a migration. The
// caller ignores SIGPIPE (ignore_sigpipe()). Threads: any.
template <typename... Args>
void print_to(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  (void)std::fwrite(text.data(), 1, text.size(), stream);
  (void)std::fflush(stream);
}

// Ignores SIGPIPE in the whole process. Programs that the process starts through spawn() get the
// default action back.
void ignore_sigpipe();

}  // namespace ppmr
