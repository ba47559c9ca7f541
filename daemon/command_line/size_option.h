// Command line options with units: sizes (64KiB, 8MiB, 1GiB, or plain bytes) and times (5, 0.5,
// 200ms).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ppmr {

// Parses a size: "8MiB" -> 8388608. Units: B, KiB, MiB, GiB, TiB, in large or small letters. K and
// KB stand for KiB, and so on for the other units, because people type them. Errors: EINVAL.
Result<uint64_t> parse_size(std::string_view text);
// Parses a time: "5", "0.5", "5s", "200ms", "2m", "12h", "7d". Errors: EINVAL.
Result<std::chrono::milliseconds> parse_time(std::string_view text);

// Formats a size: "0 B", "1.5 KiB", "1.0 GiB".
std::string format_size(uint64_t size_bytes);
// Formats a time: "3 ms", "1.2 s", "4 min 3 s", "2 h 5 min".
std::string format_time(std::chrono::microseconds time);
// Formats a time in seconds like format_time(). A negative number stands for an unknown time, and
// gives "-".
std::string format_seconds(double seconds);

// Adds an option for a size. The present value of `size_bytes` is the default, which --help shows.
CLI::Option* add_size_option(CLI::App& app, const std::string& name, size_t& size_bytes,
                             const std::string& description);
CLI::Option* add_time_option(CLI::App& app, const std::string& name,
                             std::chrono::milliseconds& time, const std::string& description);
// Adds --peer-timeout, which both daemons have: 0.1 seconds to 24 hours.
CLI::Option* add_peer_timeout_option(CLI::App& app, std::chrono::milliseconds& time);

}  // namespace ppmr
