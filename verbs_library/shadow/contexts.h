// Opened devices.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// For the calls that programs make while the process may be away: holds World::control.
class Control {
 public:
  Control() : guard_(world().control) {}

 private:
  std::lock_guard<std::mutex> guard_;
};

// Reports an event of the device that the device did not make. The caller holds World::control.
void raise_device_event(Context& context, const ibv_async_event& event);

// Logs and refuses. Returns null, and sets errno to EOPNOTSUPP.
std::nullptr_t refuse(const char* what);

// Keeps the events of the device that the program has not fetched: they are lost with the device.
// The caller holds World::control.
void absorb_device_events(Context& context);

}  // namespace ppmr::verbs
