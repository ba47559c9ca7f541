#include "jobs/agent/host_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr const char* kRecord = "pool";
// Bounds the size of the record, which root stores and sends on behalf of users.
constexpr size_t kUsersMax = 1024;

}  // namespace

json to_json(const PoolReport& report) {
  return {{"changed_ns", report.changed_ns}, {"out", report.out}};
}

PoolReport parse_pool_report(const json& json) {
  return {.changed_ns = json.at("changed_ns"), .out = json.at("out").get<std::set<uid_t>>()};
}

HostPool::HostPool(RecordFiles records) : records_(std::move(records)) {
  MutexLock lock(mutex_);
  if (!records_.exists(kRecord)) return;
  try {
    report_ = parse_pool_report(records_.read_all().at(0));
  } catch (const std::exception& error) {
    spdlog::error("the record of the pool: {}: this host takes no nodes until it is returned",
                  error.what());
    report_ = {.changed_ns = realtime_ns(), .out = {0}};
  }
}

Status HostPool::change(std::set<uid_t> out) {
  // The homes ignore a report that is not newer. So the time of a change must grow even if the
  // clock was set back.
  PoolReport changed{.changed_ns = std::max(realtime_ns(), report_.changed_ns + 1),
                     .out = std::move(out)};
  if (Status saved = records_.write(kRecord, to_json(changed)); !saved) return saved;
  report_ = std::move(changed);
  return {};
}

Status HostPool::take_out(uid_t uid) {
  MutexLock lock(mutex_);
  if (report_.out.contains(uid)) return {};
  if (report_.out.size() >= kUsersMax) {
    return failure(EAGAIN, fmt::format("{} users have taken this host out of the pool: ask the "
                                       "administrator to return it",
                                       report_.out.size()));
  }
  std::set<uid_t> out = report_.out;
  out.insert(uid);
  return change(std::move(out));
}

// Makes a new report even if the host is in the pool: a home may have recorded it as inactive, and
// only a new report makes it a spare again.
Status HostPool::give_back(uid_t uid) {
  MutexLock lock(mutex_);
  if (uid == 0) return change({});
  if (report_.out.contains(0)) {
    return failure(EPERM,
                   "the administrator has taken this host out of the pool: only root can "
                   "return it");
  }
  std::set<uid_t> out = report_.out;
  out.erase(uid);
  return change(std::move(out));
}

PoolReport HostPool::report() const {
  MutexLock lock(mutex_);
  return report_;
}

}  // namespace ppmr
