#include "cli/status_samples.h"

#include <future>

#include "cli/option_helpers.h"
#include "cli/status_view.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"

namespace ppmr {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

const StatusSample* find_sample(const std::vector<StatusSample>& samples, const MountEntry& mount) {
  for (const StatusSample& sample : samples) {
    if (sample.mount.source == mount.source && sample.mount.mountpoint == mount.mountpoint) {
      return &sample;
    }
  }
  return nullptr;
}

}  // namespace

CommandResult<std::vector<MountEntry>> chosen_mounts(const std::string& mountpoint) {
  if (!mountpoint.empty()) {
    auto found = find_mount(mountpoint);
    if (found) return std::vector{found->mount};
    return tl::unexpected(no_mount(mountpoint, found.error()));
  }
  auto mounts = read_ppmr_mounts();
  if (!mounts) return command_failure(ExitCode::kFailure, mounts.error().message);
  return std::move(*mounts);
}

std::vector<StatusSample> sample_status(const std::vector<MountEntry>& mounts,
                                        const std::vector<StatusSample>& just_before) {
  std::vector<std::future<StatusSample>> queries;
  for (const MountEntry& mount : mounts) {
    const StatusSample* known = find_sample(just_before, mount);
    if (known != nullptr && !known->status) {
      queries.push_back(std::async(std::launch::deferred, [known] { return *known; }));
      continue;
    }
    queries.push_back(std::async(std::launch::async, [mount] {
      auto status = ask(mount, to_request(request::Status{}));
      return StatusSample{mount, Clock::now(), std::move(status)};
    }));
  }
  std::vector<StatusSample> samples;
  for (auto& query : queries) samples.push_back(query.get());
  return samples;
}

void add_rates_since(const std::vector<StatusSample>& before, StatusSample& sample) {
  const StatusSample* earlier = find_sample(before, sample.mount);
  if (!sample.status || earlier == nullptr || !earlier->status) return;
  add_rates(*sample.status, *earlier->status, sample.taken - earlier->taken);
}

}  // namespace ppmr
