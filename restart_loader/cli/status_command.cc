// `ppmr status`: asks the daemons of all mounts at the same time, each for at most a second,
// twice: a rate takes two samples.
#include "restart_loader/cli/status_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "mount/control/json_text.h"
#include "restart_loader/cli/status_view.h"
#include "restart_loader/migration/mount_daemon.h"

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

// Whoever was silent in `just_before` is not waited for again.
std::vector<Sample> sample(const std::vector<MountEntry>& mounts,
                           const std::vector<Sample>& just_before = {}) {
  std::vector<std::future<Sample>> asked;
  for (const MountEntry& mount : mounts) {
    const Sample* known = find_sample(just_before, mount);
    if (known != nullptr && !known->status) {
      asked.push_back(std::async(std::launch::deferred, [known] { return *known; }));
      continue;
    }
    asked.push_back(std::async(std::launch::async, [mount] {
      auto status = ask(mount, {{"op", "status"}});
      return Sample{mount, Clock::now(), std::move(status)};
    }));
  }
  std::vector<Sample> samples;
  for (auto& answer : asked) samples.push_back(answer.get());
  return samples;
}

std::string one_line(const json& object) { return json_text(object) + "\n"; }

std::string render(Sample& sample, const std::vector<Sample>& before, bool as_json) {
  if (!sample.status) {
    return as_json ? silent_json(sample.mount, sample.status.error())
                   : silent_text(sample.mount, sample.status.error());
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
    bool silent = false;
    for (Sample& sample : now) {
      page += render(sample, before, json);
      silent |= !sample.status;
    }
    if (mounts->empty() && !json) page += "no ppmr mounts\n";
    fmt::print("{}", page);
    std::fflush(stdout);
    if (!watch) return to_int(silent ? ExitCode::kDaemonSilent : ExitCode::kSuccess);
    before = std::move(now);
    std::this_thread::sleep_for(kWatchInterval);
  }
}

}  // namespace ppmr
