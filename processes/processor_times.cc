#include "processes/processor_times.h"

#include <charconv>
#include <string>
#include <utility>

#include "processes/proc_files.h"

namespace ppmr {

using std::chrono::nanoseconds;

std::optional<ProcessorTimes> parse_schedstat(std::string_view text) {
  uint64_t ran = 0, waited = 0;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, ran);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, waited);
  if (second.ec != std::errc()) return std::nullopt;
  return ProcessorTimes{nanoseconds(ran), nanoseconds(waited)};
}

double waiting_share(const ProcessorTimes& times) {
  const auto ready = times.ran + times.waited;
  if (ready.count() <= 0) return 0;
  return static_cast<double>(times.waited.count()) / static_cast<double>(ready.count());
}

ProcessorTimes ProcessorMeter::since_last() {
  const auto before = std::exchange(threads_, {});
  ProcessorTimes sum;
  const auto tree = read_tree(root_);
  if (!tree) return sum;
  for (const ProcessStat& process : *tree) {
    const auto threads = read_threads(process.pid);
    if (!threads) continue;
    for (const pid_t thread : *threads) {
      const auto text = read_process_file(thread, "schedstat");
      const auto now = text ? parse_schedstat(*text) : std::nullopt;
      if (!now) continue;
      threads_.emplace(thread, *now);
      const auto known = before.find(thread);
      const ProcessorTimes then = known == before.end() ? ProcessorTimes{} : known->second;
      if (now->ran < then.ran || now->waited < then.waited) continue;  // a new thread has the id
      sum.ran += now->ran - then.ran;
      sum.waited += now->waited - then.waited;
    }
  }
  return sum;
}

}  // namespace ppmr
