// The processes that `ppmr protect` protects through this mount, as it last reported them. If it is
// killed, its processes stay listed, and the age of their newest epochs grows.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "daemon/control/requests.h"

namespace ppmr {

inline constexpr size_t kProtectedProcessesMax = 1024;

// Threads: any.
class ProtectedProcesses {
 public:
  // Errors: EINVAL; ENOSPC for too many.
  Status note(const request::NoteEpoch& report);
  void forget(const request::NoteProtectionEnd& report);
  // An array of the reports, by name. Each has also "age_ms", which counts from "frozen_ns", and
  // "on_disk" if its partner keeps epochs on a disk.
  nlohmann::json status() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, nlohmann::json> processes_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
