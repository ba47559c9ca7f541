// Whether this host is in the pool of hosts that take job nodes. An evacuated host is out of the
// pool until it is returned: for the jobs of the user who evacuated it, or for all jobs if root
// evacuated it. The homes of jobs ask the host for this (PoolReport), because only they know which
// jobs have the host as a spare.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>

#include "base/mutex.h"
#include "base/result.h"
#include "jobs/agent/record_files.h"

namespace ppmr {

struct PoolReport {
  int64_t changed_ns = 0;  // last change, by the clock of the host; 0: never changed
  std::set<uid_t> out{};   // users whose jobs must not use the host; 0: no job may use it

  bool is_out_for(uid_t user) const { return out.contains(0) || out.contains(user); }
};

nlohmann::json to_json(const PoolReport& report);
// Throws nlohmann::json::exception.
PoolReport parse_pool_report(const nlohmann::json& json);

// The record of who has taken this host out of the pool survives a restart of the host.
//
// Threads: any.
class HostPool {
 public:
  // Reads this record from `records`. If it is unreadable, the host is out for all jobs.
  explicit HostPool(RecordFiles records);

  // Take the host out of the pool, or give it back. Both are idempotent, and durable on return. A
  // user (`uid` not 0) takes it out, and gives it back, only for the user's own jobs. Root takes it
  // out for all jobs, and gives it back for all users. Errors: those of the system calls; EPERM:
  // root has taken the host out; EAGAIN: too many users have taken it out.
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
