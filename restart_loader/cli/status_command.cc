// `ppmr status`: queries the daemons of all mounts in parallel, with a time limit of one second,
// twice, because a rate needs two samples.
#include "restart_loader/cli/status_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "mount/control/json_text.h"
#include "restart_loader/cli/status_view.h"
#include "restart_loader/migration/mount_daemon.h"
#include "restart_loader/migration/output.h"

namespace ppmr {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRateInterval{200};
constexpr std::chrono::milliseconds kWatchInterval{1000};

struct Sample {
  MountEntry mount;
  Clock::time_point taken;
  CommandResult<json> status;
};

CommandResult<std::vector<MountEntry>> chosen_mounts(const std::string& mountpoint) {
  if (!mountpoint.empty()) {
    auto found = find_mount(mountpoint);
    if (found) return std::vector{found->mount};
    return command_failure(ExitCode::kNotMounted, found.error().errno_value == ENODEV
                                                      ? mountpoint + " is not in a ppmr mount"
                                                      : found.error().message);
  }
  auto mounts = read_ppmr_mounts();
  if (!mounts) return command_failure(ExitCode::kFailure, mounts.error().message);
  return std::move(*mounts);
}

const Sample* find_sample(const std::vector<Sample>& samples, const MountEntry& mount) {
  for (const Sample& sample : samples) {
    if (sample.mount.source == mount.source && sample.mount.mountpoint == mount.mountpoint) {
      return &sample;
    }
  }
  return nullptr;
}

// A daemon that did not reply when `just_before` was sampled is not queried again.
std::vector<Sample> sample(const std::vector<MountEntry>& mounts,
                           const std::vector<Sample>& just_before = {}) {
  std::vector<std::future<Sample>> queries;
  for (const MountEntry& mount : mounts) {
    const Sample* known = find_sample(just_before, mount);
    if (known != nullptr && !known->status) {
      queries.push_back(std::async(std::launch::deferred, [known] { return *known; }));
      continue;
    }
    queries.push_back(std::async(std::launch::async, [mount] {
      auto status = ask(mount, {{"op", "status"}});
      return Sample{mount, Clock::now(), std::move(status)};
    }));
  }
  std::vector<Sample> samples;
  for (auto& query : queries) samples.push_back(query.get());
  return samples;
}

std::string one_line(const json& object) { return json_text(object) + "\n"; }

std::string render(Sample& sample, const std::vector<Sample>& before, bool as_json) {
  if (!sample.status) {
    return as_json ? no_reply_json(sample.mount, sample.status.error())
                   : no_reply_text(sample.mount, sample.status.error());
  }
  const Sample* earlier = find_sample(before, sample.mount);
  if (earlier != nullptr && earlier->status) {
    add_rates(*sample.status, *earlier->status, sample.taken - earlier->taken);
  }
  return as_json ? one_line(*sample.status) : status_text(*sample.status, sample.mount);
}

}  // namespace

int StatusCommand::run() const {
  const bool redraw = watch && !json && isatty(STDOUT_FILENO) != 0;
  std::vector<Sample> before;
  for (;;) {
    const auto mounts = chosen_mounts(mountpoint);
    if (!mounts) return report("status", mounts.error(), json);
    std::vector<Sample> now;
    if (before.empty() && !mounts->empty()) {
      before = sample(*mounts);
      std::this_thread::sleep_for(kRateInterval);
      now = sample(*mounts, before);
    } else {
      now = sample(*mounts);
    }
    std::string page = redraw ? "\033[H\033[J" : "";
    bool all_replied = true;
    for (Sample& sample : now) {
      page += render(sample, before, json);
      all_replied = all_replied && sample.status;
    }
    if (mounts->empty() && !json) page += "no ppmr mounts\n";
    print_to(stdout, "{}", page);
    if (!watch || std::ferror(stdout))
      return to_int(all_replied ? ExitCode::kSuccess : ExitCode::kDaemonSilent);
    before = std::move(now);
    std::this_thread::sleep_for(kWatchInterval);
  }
}

}  // namespace ppmr
