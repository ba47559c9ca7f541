#include "fuse_target/keep/retention.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace ppmr {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string series_of(const std::string& name) {
  // Cuts a date off the end: goes back as long as there are digits or separators of a date. 'T' and
  // 'Z' are separators only beside digits, as in 2026-11-28T10:00Z.
  size_t end = name.size();
  bool has_digit = false;
  while (end > 0) {
    const char c = name[end - 1];
    const bool of_time =
        (c == 'T' && end < name.size() && is_digit(name[end])) || (c == 'Z' && end == name.size());
    const bool after_digit = end >= 2 && is_digit(name[end - 2]);
    if (!is_digit(c) && std::string("-_.:+").find(c) == std::string::npos &&
        !(of_time && after_digit)) {
      break;
    }
    has_digit = has_digit || is_digit(c);
    --end;
  }
  return has_digit ? name.substr(0, end) : name;
}

std::vector<size_t> choose_expired(const std::vector<RetentionCandidate>& kept,
                                   const RetentionLimits& limits, int64_t now_ns) {
  std::vector<size_t> newest_first(kept.size());
  std::iota(newest_first.begin(), newest_first.end(), size_t{0});
  std::stable_sort(newest_first.begin(), newest_first.end(),
                   [&](size_t a, size_t b) { return kept[a].sealed_ns > kept[b].sealed_ns; });
  std::map<std::string, size_t> of_series;  // number of newer checkpoints of each series
  uint64_t bytes = 0;
  std::vector<bool> expired(kept.size(), false);
  std::vector<bool> may_go(kept.size(), false);
  for (const size_t i : newest_first) {
    const size_t newer = of_series[series_of(kept[i].name)]++;
    may_go[i] = newer > 0 && !kept[i].in_use;
    const bool old = limits.age.count() > 0 && now_ns > kept[i].sealed_ns &&
                     std::chrono::nanoseconds(now_ns - kept[i].sealed_ns) > limits.age;
    const bool many = limits.count > 0 && newer >= limits.count;
    expired[i] = may_go[i] && (old || many);
    if (!expired[i]) bytes += kept[i].bytes;
  }
  std::vector<size_t> chosen;
  for (auto oldest = newest_first.rbegin(); oldest != newest_first.rend(); ++oldest) {
    const size_t i = *oldest;
    if (!expired[i] && may_go[i] && limits.bytes > 0 && bytes > limits.bytes) {
      expired[i] = true;
      bytes -= kept[i].bytes;
    }
    if (expired[i]) chosen.push_back(i);
  }
  return chosen;
}

}  // namespace ppmr
