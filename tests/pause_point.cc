// The pause points of the test build. The file that PPMR_PAUSE_FILE names lists states
// ("source:sealed target:ready"). A process that has just written one of these states creates the
// file paused-STATE beside the record, and waits until the test removes this file.
#include "migration/records/pause_point.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPauseMax{120'000};
// Polls instead of using inotify: each user has few instances of inotify, and the code under test
// needs them.
constexpr milliseconds kLookInterval{2};

}  // namespace

void pause_point(const std::string& directory, const OwnershipRecord& record) {
  const char* list = std::getenv("PPMR_PAUSE_FILE");
  if (list == nullptr) return;
  std::ifstream file(list);
  const std::string here = to_string(record.role, record.state());
  bool listed = false;
  for (std::string state; file >> state;) listed = listed || state == here;
  if (!listed) return;
  const std::string marker = directory + "/paused-" + to_string(record.state());
  const UniqueFd made(::open(marker.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!made) return;
  const auto deadline = Clock::now() + kPauseMax;
  while (access(marker.c_str(), F_OK) == 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(kLookInterval);
  }
}

}  // namespace ppmr
