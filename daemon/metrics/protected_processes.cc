#include "daemon/metrics/protected_processes.h"

#include <algorithm>

#include "base/clock.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr size_t kTextMaxBytes = 64;
constexpr size_t kErrorMaxBytes = 300;

void add_age(json& epoch, int64_t now_ns) {
  const int64_t age_ns = now_ns - epoch.at("frozen_ns").get<int64_t>();
  epoch["age_ms"] = std::max<int64_t>(age_ns / 1'000'000, 0);
}

}  // namespace

Status ProtectedProcesses::note(const request::NoteEpoch& report) {
  const std::string& name = report.process;
  if (name.empty() || name.size() > kTextMaxBytes) {
    return failure(EINVAL, "note an epoch: the name '" + name.substr(0, kTextMaxBytes) +
                               "' of the process is empty or too long");
  }
  MutexLock lock(mutex_);
  if (!processes_.contains(name) && processes_.size() >= kProtectedProcessesMax) {
    return failure(ENOSPC, "note an epoch of '" + name +
                               "': " + std::to_string(kProtectedProcessesMax) +
                               " other processes are protected already, which is the maximum");
  }
  processes_[name] = {{"name", name},
                      {"program", report.program.substr(0, kTextMaxBytes)},
                      {"pid", report.pid},
                      {"epoch", report.epoch},
                      {"frozen_ns", report.frozen_ns},
                      {"pause_ms", report.pause_ms},
                      {"bytes", report.bytes},
                      {"sent_bytes", report.sent_bytes},
                      {"every_ms", report.every_ms}};
  if (report.disk_epoch >= 0) {
    processes_[name]["on_disk"] = {{"epoch", report.disk_epoch},
                                   {"frozen_ns", report.disk_frozen_ns},
                                   {"error", report.disk_error.substr(0, kErrorMaxBytes)}};
  }
  return {};
}

void ProtectedProcesses::forget(const request::NoteProtectionEnd& report) {
  MutexLock lock(mutex_);
  processes_.erase(report.process);
}

json ProtectedProcesses::status() const {
  const int64_t now_ns = realtime_ns();
  json list = json::array();
  MutexLock lock(mutex_);
  for (const auto& [name, process] : processes_) {
    list.push_back(process);
    add_age(list.back(), now_ns);
    const auto on_disk = list.back().find("on_disk");
    if (on_disk != list.back().end() && on_disk->at("epoch") > 0) add_age(*on_disk, now_ns);
  }
  return list;
}

}  // namespace ppmr
