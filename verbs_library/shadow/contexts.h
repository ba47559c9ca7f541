// Opened devices.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// Locks World::control for one call of the program. The call waits here while the process is away,
// because the helper thread then holds the lock.
class Control {
 public:
  Control() : guard_(world().control) {}

 private:
  std::lock_guard<std::mutex> guard_;
};

// Reports an asynchronous event that the library makes itself. The caller holds World::control.
void raise_device_event(Context& context, const ibv_async_event& event);

// Logs that the library refuses `what`. Sets errno to EOPNOTSUPP, and returns null.
std::nullptr_t refuse(const char* what);

// Fetches the events of the device that the program has not fetched, because they would be lost
// when the device is closed. The caller holds World::control.
void absorb_device_events(Context& context);

}  // namespace ppmr::verbs
