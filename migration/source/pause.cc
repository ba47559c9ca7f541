#include "migration/source/pause.h"

#include <algorithm>

#include "base/clock.h"
#include "base/number_file.h"
#include "processes/memory/pace.h"

namespace ppmr {
namespace {

using std::chrono::nanoseconds;

std::string earlier_file(const std::string& directory) { return directory + "/pauses-ns"; }
std::string freeze_file(const std::string& directory) { return directory + "/freeze-begins"; }

nanoseconds since(int64_t began_ns) {
  return nanoseconds(began_ns > 0 ? std::max<int64_t>(realtime_ns() - began_ns, 0) : 0);
}

nanoseconds earlier_pauses(const std::string& directory) {
  return nanoseconds(static_cast<int64_t>(read_number(earlier_file(directory))));
}

}  // namespace

std::string pause_file(const std::string& directory) { return directory + "/pause-began"; }

int64_t pause_began_ns(const std::string& directory) {
  const uint64_t number = read_number(pause_file(directory));
  return number == kReadNoMore ? 0 : static_cast<int64_t>(number);
}

Status abandon_rounds(const std::string& directory) {
  return write_number(pause_file(directory), kReadNoMore);
}

bool is_pause_excluded(const std::string& directory) {
  return read_number(freeze_file(directory)) > 0;
}

// begin_pause() writes the pause, and then looks for a freeze. exclude_pause() writes the freeze,
// and then looks for a pause. So at least one of the two sees the other.
Status begin_pause(const std::string& directory) {
  if (is_pause_excluded(directory)) return failure(EBUSY, "its processes are being frozen");
  if (pause_began_ns(directory) > 0) return failure(EALREADY, "it is paused already");
  const auto now = static_cast<uint64_t>(realtime_ns());
  if (Status begun = write_number(pause_file(directory), now); !begun) return begun;
  if (!is_pause_excluded(directory)) return {};
  if (Status ended = write_number(pause_file(directory), 0); !ended) return ended;
  return failure(EBUSY, "its processes are being frozen");
}

Result<nanoseconds> end_pause(const std::string& directory) {
  const int64_t began_ns = pause_began_ns(directory);
  if (began_ns == 0) return failure(ENOENT, "it is not paused");
  const nanoseconds took = since(began_ns);
  const nanoseconds all = earlier_pauses(directory) + took;
  const auto number = static_cast<uint64_t>(all.count());
  if (Status noted = write_number(earlier_file(directory), number); !noted) {
    return failure(noted.error());
  }
  if (Status ended = write_number(pause_file(directory), 0); !ended) return failure(ended.error());
  return took;
}

nanoseconds time_paused(const std::string& directory) {
  return earlier_pauses(directory) + since(pause_began_ns(directory));
}

Result<bool> exclude_pause(const std::string& directory) {
  if (Status noted = write_number(freeze_file(directory), 1); !noted) {
    return failure(noted.error());
  }
  if (pause_began_ns(directory) == 0) return true;
  if (Status again = write_number(freeze_file(directory), 0); !again) {
    return failure(again.error());
  }
  return false;
}

}  // namespace ppmr
