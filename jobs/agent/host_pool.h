// Whether this host is in the pool of hosts that take job nodes. An evacuated host is out, for the
// jobs of the user who evacuated it, or for all jobs if root did, until the host is returned. The
// homes of jobs ask for it (PoolReport), because only they know which jobs have the host as a
// spare.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>

#include "base/mutex.h"
#include "base/result.h"
#include "jobs/agent/record_files.h"

namespace ppmr {

struct PoolReport {
  int64_t changed_ns = 0;  // last change, by the clock of the host; 0: never
  std::set<uid_t> out{};   // users whose jobs must not use the host; 0: no job may

  bool is_out_for(uid_t user) const { return out.contains(0) || out.contains(user); }
};

nlohmann::json to_json(const PoolReport& report);
// Throws nlohmann::json::exception.
PoolReport parse_pool_report(const nlohmann::json& json);

// The record survives a restart of the host. Threads: any.
class HostPool {
 public:
  // Reads the record. One that cannot be read counts as "out for all jobs".
  explicit HostPool(RecordFiles records);

  // Both are durable on return, and idempotent. A user (`uid` not 0) changes only what concerns the
  // user's own jobs; root's return is for all users. Errors: those of the system calls; EPERM: root
  // has taken the host out; EAGAIN: too many users have taken it out.
  Status take_out(uid_t uid);
  Status give_back(uid_t uid);
  PoolReport report() const;

 private:
  Status change(std::set<uid_t> out) PPMR_REQUIRES(mutex_);

  const RecordFiles records_;
  mutable Mutex mutex_;
  PoolReport report_ PPMR_GUARDED_BY(mutex_);
};

}  // namespace ppmr
