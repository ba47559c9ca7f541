// The processes that `ppmr protect` protects through this mount, as it has last reported them. If a
// `ppmr protect` is killed, its process stays listed, and the age of its newest epoch grows.
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
  // Adds a process, or replaces its last report. Errors: EINVAL; ENOSPC for too many processes.
  Status note(const request::NoteEpoch& report);
  void forget(const request::NoteProtectionEnd& report);
  // Returns an array of the reports, sorted by name. Each also has "age_ms", which counts from
  // "frozen_ns", and "on_disk" if the partner keeps epochs on a disk.
  nlohmann::json status() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, nlohmann::json> processes_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
