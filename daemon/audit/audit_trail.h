// The audit trail: who connected, who was refused, what moved and what was restarted. One line for
// each event, as JSON: to syslog (facility authpriv), and appended to a file if there is one.
//
// Bytes from peers are escaped, so a line is always one line of ASCII. Nothing is removed here: the
// journal and logrotate keep lines by age (docs/operations.md).
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/open_file.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rdma_stream/connection/connection_event.h"

namespace ppmr {

// Threads: any. Several processes may write to one file.
class AuditTrail {
 public:
  using Clock = std::chrono::steady_clock;

  // `file`: an absolute path; it is created with mode 0600. Empty: syslog only. Errors: those of
  // open(2); EPERM when other users can change the file; ELOOP for a symbolic link.
  static Result<std::unique_ptr<AuditTrail>> open(const std::string& file);

  // Writes {"time":NOW,"event":`event`, ...`details`}. An error is logged: it stops nothing.
  void write(const std::string& event, const nlohmann::json& details);
  // Of events that strangers cause, writes at most kStrangersPerSecond for long, and the number of
  // those left out in the next one.
  void write(const ConnectionEvent& event, Clock::time_point now = Clock::now());
  // Opens the file again, after logrotate has renamed it. Errors: those of open().
  Status reopen(const OpenFile& open = open_to_append);

  static constexpr double kStrangersPerSecond = 10;
  static constexpr double kStrangersAtOnce = 100;

 private:
  explicit AuditTrail(std::string file) : path_(std::move(file)) {}
  bool may_write_stranger_locked(Clock::time_point now, uint64_t& left_out);

  const std::string path_;
  std::mutex mutex_;
  // Guarded by mutex_.
  UniqueFd file_;
  double credit_ = kStrangersAtOnce;
  Clock::time_point credit_at_{};
  uint64_t left_out_ = 0;
};

}  // namespace ppmr
