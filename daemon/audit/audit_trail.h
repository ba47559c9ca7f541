// The audit trail: which peers connected, which peers were refused, what was moved and what was
// restarted. It has one line of JSON for each event. The daemon sends the line to syslog (facility
// authpriv), and appends it to the audit file if there is one.
// Bytes from peers are escaped, so a line is always one line of ASCII. The daemon removes no line:
// journald and logrotate remove lines by age (docs/operations.md).
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/mutex.h"
#include "base/open_file.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rdma_stream/connection/connection_event.h"

namespace ppmr {

// Threads: any. Several processes may write to one file.
class AuditTrail {
 public:
  using Clock = std::chrono::steady_clock;

  // Opens the audit trail. `file` is an absolute path; open() creates a missing file with mode
  // 0600. Empty: syslog only. Errors: those of open(2); EPERM when other users can change the file;
  // ELOOP for a symbolic link.
  static Result<std::unique_ptr<AuditTrail>> open(const std::string& file);

  // Writes {"time":NOW,"event":`event`, ...`details`}. After an error, only writes a line to the
  // log.
  void write(const std::string& event, const nlohmann::json& details);
  // Limits the lines about events that strangers cause: writes on average at most
  // kStrangersPerSecond, and adds the number of omitted events to the next line.
  void write(const ConnectionEvent& event, Clock::time_point now = Clock::now());
  // Opens the file again after logrotate has renamed it. Errors: those of open().
  Status reopen(const OpenFile& open = open_to_append);

  static constexpr double kStrangersPerSecond = 10;
  static constexpr double kStrangersAtOnce = 100;

 private:
  explicit AuditTrail(std::string file) : path_(std::move(file)) {}
  bool may_write_stranger_locked(Clock::time_point now, uint64_t& left_out) PPMR_REQUIRES(mutex_);

  const std::string path_;
  Mutex mutex_;
  UniqueFd file_ PPMR_GUARDED_BY(mutex_);
  double credit_ PPMR_GUARDED_BY(mutex_) = kStrangersAtOnce;
  Clock::time_point credit_at_ PPMR_GUARDED_BY(mutex_){};
  uint64_t left_out_ PPMR_GUARDED_BY(mutex_) = 0;
};

}  // namespace ppmr
