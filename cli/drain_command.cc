// `ppmr drain MOUNTPOINT`: from now on the daemon begins no new checkpoint. This command waits
// until open checkpoints are finished and, at a target, until migrations are finished.
#include "cli/drain_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "cli/option_helpers.h"
#include "cli/screen/counted.h"
#include "cli/screen/one_line.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "mount/mount_table.h"

namespace ppmr {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kInterval{100};

struct Work {
  int open = 0;    // checkpoints whose bytes are still arriving
  int sealed = 0;  // checkpoints that are lost when the target's daemon ends
  int agents = 0;  // connections of `ppmr migrate` to a target
};

// Returns whether the daemon ends only after it has written the checkpoint to the disk.
bool will_be_kept(const json& checkpoint) {
  const std::string kept = checkpoint.value("kept", "");
  return kept == "writing" || (kept == "no" && checkpoint.value("state", "") == "sealed" &&
                               checkpoint.value("keep_error", "").empty());
}

Work work_in(const json& status) {
  Work work;
  work.agents = status.value("agents", 0);
  for (const json& checkpoint : status.at("checkpoints")) {
    const std::string state = checkpoint.at("state");
    if (state == "open" || state == "complete") ++work.open;
    if (will_be_kept(checkpoint)) {
      ++work.open;
    } else if (state == "sealed" && status.at("role") == "target" &&
               checkpoint.value("kept", "") != "kept") {
      ++work.sealed;
    }
  }
  return work;
}

// Prints at the beginning what the command waits for: the operator may have forgotten a move.
void print_wait(const json& status, const MountEntry& mount) {
  const std::string what = describe_open_work(status);
  if (what.empty()) return;
  print_to(stderr, "{} begins nothing new; waiting for {}\n", mount.mountpoint, one_line(what));
}

CommandResult<Work> drain(const MountEntry& mount, const DrainCommand& command) {
  const auto begun = Clock::now();
  bool said = command.json;
  auto told = ask(mount, to_request(request::Drain{!command.resume}));
  if (!told) return tl::unexpected(told.error());
  for (;;) {
    const auto status = ask(mount, to_request(request::Status{}));
    if (!status) return tl::unexpected(status.error());
    const Work work = work_in(*status);
    if (command.resume || work.open + work.agents == 0) return work;
    if (!std::exchange(said, true)) print_wait(*status, mount);
    if (command.timeout && Clock::now() - begun >= *command.timeout) {
      return command_failure(
          ExitCode::kTimedOut,
          fmt::format("{}: not finished: {}; nothing new begins there until `ppmr drain --resume "
                      "{}`",
                      mount.mountpoint, describe_open_work(*status), mount.mountpoint));
    }
    std::this_thread::sleep_for(kInterval);
  }
}

}  // namespace

std::string describe_open_work(const json& status) {
  constexpr size_t kShownMax = 3;
  std::vector<std::string> parts;
  const auto take = [&](const json& each, const std::string& text) {
    if (each.is_object()) parts.push_back(text);
  };
  const json migrations = status.value("/open_migrations/migrations"_json_pointer, json::array());
  for (const json& each : migrations) {
    take(each, fmt::format("migration {} ({})", each.value("id", "?").substr(0, 8),
                           each.value("state", "?")));
  }
  for (const json& each : status.value("checkpoints", json::array())) {
    const std::string state = each.value("state", "");
    if (state != "open" && state != "complete" && !will_be_kept(each)) continue;
    take(each, fmt::format("checkpoint {} ({}, {})", each.value("name", "?"), state,
                           format_size(each.value("bytes", uint64_t{0}))));
  }
  if (parts.empty() && status.value("agents", 0) > 0) {
    parts.push_back(counted(status.value("agents", 0), "connection") + " of ppmr migrate");
  }
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kShownMax); ++i) {
    text += (text.empty() ? "" : ", ") + parts[i];
  }
  if (parts.size() > kShownMax) text += fmt::format(" and {} more", parts.size() - kShownMax);
  return text;
}

int DrainCommand::run() const {
  ignore_sigpipe();
  const auto found = find_mount(mountpoint);
  if (!found) {
    return report("drain", no_mount(mountpoint, found.error()), json);
  }
  const auto drained = drain(found->mount, *this);
  if (!drained) return report("drain", drained.error(), json);
  if (json) {
    print_whole(stdout, "{}\n",
                json_text({{"ok", true},
                           {"mountpoint", found->mount.mountpoint},
                           {"draining", !resume},
                           {"sealed", drained->sealed}}));
  } else if (resume) {
    print_to(stdout, "{} begins checkpoints again\n", found->mount.mountpoint);
  } else {
    print_to(stdout, "{} is drained{}\n", found->mount.mountpoint,
             drained->sealed == 0 ? ""
                                  : fmt::format("; {} will be lost when its daemon ends",
                                                counted(drained->sealed, "sealed checkpoint")));
  }
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
