#include "daemon/audit/audit_trail.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;

// Returns the present time as "2026-11-25T01:40:02.123Z".
std::string time_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  char text[32];
  const size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text, length), now.tv_nsec / 1'000'000);
}

Result<UniqueFd> open_file(const std::string& path, const OpenFile& open) {
  auto file = open(path);
  if (!file && file.error().errno_value == ELOOP) {
    return failure(ELOOP, "audit file " + path + ": is a symbolic link; name the file itself");
  }
  if (!file) return failure(file.error().errno_value, "audit file: " + file.error().message);
  struct stat found {};
  if (fstat(file->get(), &found) != 0) return system_failure("read the attributes of", path);
  if (!S_ISREG(found.st_mode)) {
    return failure(EPERM, "audit file " + path + ": not a regular file");
  }
  if ((found.st_mode & 0022) != 0 || (found.st_uid != geteuid() && found.st_uid != 0)) {
    return failure(EPERM, "audit file " + path +
                              ": other users can change it: chown it to the user that runs ppmr, "
                              "and chmod it to 600");
  }
  return file;
}

}  // namespace

Result<std::unique_ptr<AuditTrail>> AuditTrail::open(const std::string& file) {
  std::unique_ptr<AuditTrail> trail(new AuditTrail(file));
  if (Status opened = trail->reopen(); !opened) return failure(opened.error());
  return trail;
}

Status AuditTrail::reopen(const OpenFile& open) {
  if (path_.empty()) return {};
  auto file = open_file(path_, open);
  if (!file) return failure(file.error());
  MutexLock lock(mutex_);
  file_ = std::move(*file);
  return {};
}

void AuditTrail::write(const std::string& event, const json& details) {
  json line = {{"time", time_now()}, {"event", event}};
  line.update(details);
  const std::string text =
      line.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  syslog(LOG_AUTHPRIV | LOG_NOTICE, "audit: %s", text.c_str());
  MutexLock lock(mutex_);
  if (!file_) return;
  // One write(2) with O_APPEND writes the whole line, so lines of several processes do not mix.
  const std::string whole = text + "\n";
  const ssize_t written = ::write(file_.get(), whole.data(), whole.size());
  if (written != static_cast<ssize_t>(whole.size())) {
    spdlog::error("write to audit file {}: {}; the line is in syslog", path_,
                  written < 0 ? std::strerror(errno) : "only a part was written");
  }
}

void AuditTrail::write(const ConnectionEvent& event, Clock::time_point now) {
  uint64_t left_out = 0;
  if (event.from_stranger) {
    MutexLock lock(mutex_);
    if (!may_write_stranger_locked(now, left_out)) return;
  }
  json details = {{"outcome", event.outcome}, {"address", event.address}};
  const std::pair<const char*, const std::string&> optional[] = {{"service", event.service},
                                                                 {"peer", event.peer},
                                                                 {"name", event.name},
                                                                 {"reason", event.reason}};
  for (const auto& [name, text] : optional) {
    if (!text.empty()) details[name] = text;
  }
  if (left_out > 0) details["left_out"] = left_out;
  write("connection", details);
}

bool AuditTrail::may_write_stranger_locked(Clock::time_point now, uint64_t& left_out) {
  const double seconds = std::chrono::duration<double>(now - credit_at_).count();
  credit_ = std::min(kStrangersAtOnce, credit_ + std::max(0.0, seconds) * kStrangersPerSecond);
  credit_at_ = now;
  if (credit_ < 1) {
    ++left_out_;
    return false;
  }
  credit_ -= 1;
  left_out = std::exchange(left_out_, 0);
  return true;
}

}  // namespace ppmr
