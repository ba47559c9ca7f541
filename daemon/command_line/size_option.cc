#include "daemon/command_line/size_option.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace ppmr {
namespace {

constexpr std::string_view kUnits = "bkmgt";  // each unit is 1024 times the unit before it
constexpr double kTimeMaxSeconds = 365.0 * 86400;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
  const auto refuse = [&](std::string_view why) {
    return failure(EINVAL, fmt::format("invalid size '{}': {}", text, why));
  };
  const std::string_view whole = trimmed(text);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(whole.data(), whole.data() + whole.size(), number);
  if (error == std::errc::result_out_of_range) return refuse("it is too large");
  if (error != std::errc()) return refuse("expected a whole number and a unit, e.g. 64MiB or 64M");
  std::string unit(trimmed(whole.substr(static_cast<size_t>(end - whole.data()))));
  for (char& letter : unit) letter = static_cast<char>(std::tolower(letter));
  if (unit.empty()) unit = "b";
  const size_t power = kUnits.find(unit.front());
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == std::string_view::npos ||
      !(rest.empty() || (power > 0 && (rest == "b" || rest == "ib")))) {
    return refuse("expected a whole number of B, KiB, MiB, GiB or TiB, e.g. 64MiB or 64M");
  }
  const size_t shift = 10 * power;
  if (number > (UINT64_MAX >> shift)) return refuse("it is too large");
  return number << shift;
}

Result<std::chrono::milliseconds> parse_time(std::string_view text) {
  const std::string_view whole = trimmed(text);
  double number = 0;
  const auto [end, error] = std::from_chars(whole.data(), whole.data() + whole.size(), number);
  const std::string_view unit = trimmed(whole.substr(static_cast<size_t>(end - whole.data())));
  double seconds = -1;
  if (error == std::errc()) {
    if (unit.empty() || unit == "s") seconds = number;
    if (unit == "ms") seconds = number / 1000;
    if (unit == "m" || unit == "min") seconds = number * 60;
    if (unit == "h") seconds = number * 3600;
    if (unit == "d") seconds = number * 86'400;
  }
  if (!(seconds >= 0) || seconds > kTimeMaxSeconds) {
    return failure(EINVAL,
                   fmt::format("invalid time '{}': expected seconds, e.g. 5, 0.5 or 200ms", text));
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

std::string format_size(uint64_t size_bytes) {
  static constexpr std::array kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (size_bytes < 1024) return fmt::format("{} B", size_bytes);
  double value = static_cast<double>(size_bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kNames.size()) {  // "%.1f" would print this value as 1024.0
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

std::string format_time(std::chrono::microseconds time) {
  const auto us = time.count();
  if (us < 10'000) return fmt::format("{:.1f} ms", static_cast<double>(us) / 1e3);
  if (us < 999'500) return fmt::format("{} ms", (us + 500) / 1000);
  if (us < 60'000'000) return fmt::format("{:.1f} s", static_cast<double>(us) / 1e6);
  const auto seconds = us / 1'000'000;
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

std::string format_seconds(double seconds) {
  if (seconds < 0) return "-";
  return format_time(std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6)));
}

CLI::Option* add_size_option(CLI::App& app, const std::string& name, size_t& size_bytes,
                             const std::string& description) {
  auto* option = app.add_option_function<std::string>(
      name,
      [&size_bytes, name](const std::string& text) {
        const Result<uint64_t> size = parse_size(text);
        if (!size) throw CLI::ValidationError(name, size.error().message);
        size_bytes = *size;
      },
      description);
  option->type_name("SIZE");
  if (size_bytes > 0) {
    std::string shown = format_size(size_bytes);
    if (shown.ends_with(".0 " + shown.substr(shown.rfind(' ') + 1)))
      shown.erase(shown.find(".0"), 2);
    shown.erase(shown.find(' '), 1);
    option->default_str(shown);
  }
  return option;
}

CLI::Option* add_time_option(CLI::App& app, const std::string& name,
                             std::chrono::milliseconds& time, const std::string& description) {
  auto* option = app.add_option_function<std::string>(
      name,
      [&time, name](const std::string& text) {
        const auto parsed = parse_time(text);
        if (!parsed) throw CLI::ValidationError(name, parsed.error().message);
        time = *parsed;
      },
      description);
  option->type_name("SECONDS");
  if (time.count() > 0)
    option->default_str(fmt::format("{}", static_cast<double>(time.count()) / 1000));
  return option;
}

CLI::Option* add_peer_timeout_option(CLI::App& app, std::chrono::milliseconds& time) {
  return add_time_option(app, "--peer-timeout", time,
                         "treat the peer as failed when it is silent for this long")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            const auto parsed = parse_time(text);
            if (!parsed) return parsed.error().message;
            const bool in_range =
                *parsed >= std::chrono::milliseconds(100) && *parsed <= std::chrono::hours(24);
            return in_range ? "" : "must be between 0.1 seconds and 24 hours";
          },
          "", ""));
}

}  // namespace ppmr
