#include "daemon/metrics/protected_processes.h"

#include <algorithm>

#include "base/clock.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr size_t kTextMaxBytes = 64;

}  // namespace

Status ProtectedProcesses::note(const json& report) {
  try {
    const std::string name = report.at("process");
    MutexLock lock(mutex_);
    if (report.value("ended", false)) {
      processes_.erase(name);
      return {};
    }
    if (name.empty() || name.size() > kTextMaxBytes) return failure(EINVAL, "invalid name");
    if (!processes_.contains(name) && processes_.size() >= kProtectedProcessesMax) {
      return failure(ENOSPC, "too many protected processes");
    }
    const std::string program = report.at("program");
    json process = {{"name", name}, {"program", program.substr(0, kTextMaxBytes)}};
    for (const char* field :
         {"pid", "epoch", "frozen_ns", "pause_ms", "bytes", "sent_bytes", "every_ms"}) {
      process[field] = report.at(field).get<int64_t>();
    }
    processes_[name] = std::move(process);
    return {};
  } catch (const json::exception& error) {
    return failure(EINVAL, std::string("invalid report of an epoch: ") + error.what());
  }
}

json ProtectedProcesses::status() const {
  const int64_t now_ns = realtime_ns();
  json list = json::array();
  MutexLock lock(mutex_);
  for (const auto& [name, process] : processes_) {
    list.push_back(process);
    const int64_t age_ns = now_ns - process.at("frozen_ns").get<int64_t>();
    list.back()["age_ms"] = std::max<int64_t>(age_ns / 1'000'000, 0);
  }
  return list;
}

}  // namespace ppmr
