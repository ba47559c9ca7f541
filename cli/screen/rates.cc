#include "cli/screen/rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ppmr {
namespace {

constexpr std::chrono::seconds kWindow{1};

}  // namespace

void RateMeter::add(uint64_t bytes, Time at) {
  if (!samples_.empty() && bytes < samples_.back().bytes) samples_.clear();
  samples_.push_back({bytes, at});
  while (samples_.size() > 2 && at - samples_[1].at >= kWindow) samples_.pop_front();
}

double RateMeter::bytes_per_s() const {
  if (samples_.size() < 2) return 0;
  const double seconds =
      std::chrono::duration<double>(samples_.back().at - samples_.front().at).count();
  const auto bytes = static_cast<double>(samples_.back().bytes - samples_.front().bytes);
  return seconds > 0 ? bytes / seconds : 0;
}

RateMeter::Time::duration RateMeter::measured_for() const {
  return samples_.empty() ? Time::duration(0) : samples_.back().at - samples_.front().at;
}

double seconds_left(uint64_t bytes, uint64_t expected_bytes, double bytes_per_s) {
  if (bytes_per_s <= 0 || expected_bytes <= bytes) return -1;
  return static_cast<double>(expected_bytes - bytes) / bytes_per_s;
}

std::string percentage(uint64_t bytes, uint64_t expected_bytes) {
  if (expected_bytes == 0 || bytes > expected_bytes) return "";
  const double part = static_cast<double>(bytes) / static_cast<double>(expected_bytes);
  return fmt::format("{}%", static_cast<int>(100 * part));
}

std::string sparkline(const std::deque<uint64_t>& values, size_t columns, Charset charset) {
  static constexpr std::array<const char*, 9> kBlocks = {" ", "▁", "▂", "▃", "▄",
                                                         "▅", "▆", "▇", "█"};
  static constexpr std::array<const char*, 9> kAscii = {" ", ".", ":", "-", "=",
                                                        "+", "*", "#", "@"};
  const auto& levels = charset == Charset::kUtf8 ? kBlocks : kAscii;
  const uint64_t highest = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  const size_t shown = std::min(columns, values.size());
  std::string text(columns - shown, ' ');
  for (size_t i = values.size() - shown; i < values.size(); ++i) {
    const double part =
        highest > 0 ? static_cast<double>(values[i]) / static_cast<double>(highest) : 0;
    const size_t level = values[i] == 0 ? 0 : std::max<size_t>(1, static_cast<size_t>(part * 8));
    text += levels[level];
  }
  return text;
}

std::string gauge(uint64_t part, uint64_t whole, size_t columns) {
  if (columns < 3) return "";
  const size_t room = columns - 2;
  const double share =
      whole > 0 ? std::min(1.0, static_cast<double>(part) / static_cast<double>(whole)) : 0;
  size_t filled = static_cast<size_t>(share * static_cast<double>(room));
  if (part > 0 && filled == 0) filled = 1;
  return "[" + std::string(filled, '#') + std::string(room - filled, '.') + "]";
}

}  // namespace ppmr
