// The migrations of a daemon's mount that are not over. The daemon has no right to read their
// records, so its settler (`ppmr migration-settle`) reports them every 20 s.
#pragma once

#include <nlohmann/json.hpp>

#include "base/mutex.h"
#include "base/result.h"
#include "daemon/control/requests.h"

namespace ppmr {

inline constexpr size_t kOpenMigrationsListed = 16;

// Threads: any.
class OpenMigrations {
 public:
  // Replaces the last report. Errors: EINVAL.
  Status note(const request::NoteOpen& report);
  // Returns {"count":N,"oldest_ns":N,"migrations":[..]} for the status. Lists only the oldest
  // migrations.
  nlohmann::json status() const;

 private:
  mutable Mutex mutex_;
  nlohmann::json status_ PPMR_GUARDED_BY(mutex_) = {
      {"count", 0}, {"oldest_ns", 0}, {"migrations", nlohmann::json::array()}};
};

}  // namespace ppmr
