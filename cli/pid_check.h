// The check of an option that takes a pid.
#pragma once

#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <string>
#include <system_error>

namespace ppmr {

// Returns a check whose message says what a pid is, and where to find one.
inline CLI::Validator pid_check() {
  const auto check = [](std::string& text) -> std::string {
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
    if (error == std::errc{} && end == text.data() + text.size() && pid > 0) return "";
    return "'" + text + "' is no pid, which is a number from 1 to " +
           std::to_string(std::numeric_limits<pid_t>::max()) +
           ": pgrep NAME prints those of a program";
  };
  return {check, "", "pid"};
}

}  // namespace ppmr
