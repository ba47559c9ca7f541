#include "daemon/control/mount_daemon.h"

#include <sys/mount.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "daemon/command_line/size_option.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A client splits a long wait into slices of this length. After each slice it checks whether the
// daemon still replies. wait_until_complete() sends a new request for each slice, so that the
// daemon soon drops a client that was killed.
constexpr milliseconds kWaitSlice{2000};
// The pause before the next request when the daemon has refused a request at once instead of
// waiting for an event.
constexpr milliseconds kRetryInterval{20};
// A busy machine delays the daemon's reply by less than this.
constexpr milliseconds kDaemonSilence{5000};

CommandError unreachable(const MountEntry& mount, const Error& error) {
  const std::string daemon = "the daemon of " + mount.mountpoint;
  switch (error.errno_value) {
    case EACCES:
    case EPERM:
      return {ExitCode::kFailure, daemon + " accepts requests only from its user and from root"};
    case ETIMEDOUT:
      return {ExitCode::kDaemonSilent,
              daemon + " did not reply in time: is it stopped, or the machine overloaded?"};
    case ECONNREFUSED:
      return {ExitCode::kDaemonSilent,
              daemon + " has died: remove its mount (umount -l " + mount.mountpoint + ")"};
    case ENOENT:
      return {ExitCode::kDaemonSilent,
              daemon + " has ended, or runs where another /run is mounted: its control socket " +
                  mount.source + " is not here (umount -l " + mount.mountpoint +
                  " removes the mount)"};
    case ENODATA:
    case ECONNRESET:
    case EPIPE:
      return {ExitCode::kDaemonSilent, daemon + " ended during the request"};
    default:
      return {ExitCode::kDaemonSilent, daemon + ": " + error.message};
  }
}

CommandResult<json> judge(Result<json> answer, const MountEntry& mount) {
  if (!answer) return tl::unexpected(unreachable(mount, answer.error()));
  if (Status verdict = accepted(*answer); !verdict) {
    ExitCode exit_code = ExitCode::kCheckpointFailed;
    if (verdict.error().errno_value == ETIMEDOUT) exit_code = ExitCode::kTimedOut;
    if (verdict.error().errno_value == EINVAL) exit_code = ExitCode::kUsage;
    return command_failure(exit_code, verdict.error().message);
  }
  return std::move(*answer);
}

const json* find_in(const json& status, const std::string& name) {
  const auto checkpoints = status.find("checkpoints");
  if (checkpoints == status.end()) return nullptr;
  for (const json& checkpoint : *checkpoints) {
    if (checkpoint.value("name", "") == name) return &checkpoint;
  }
  return nullptr;
}

bool has_connected_source(const json& status) {
  for (const json& peer : status.value("peers", json::array())) {
    if (peer.value("connected", false)) return true;
  }
  return false;
}

bool is_temporary(const Error& refusal) {
  return refusal.errno_value == ETIMEDOUT || refusal.errno_value == ENOENT ||
         refusal.errno_value == EAGAIN;
}

}  // namespace

CommandResult<CheckpointPath> find_checkpoint(const std::string& path) {
  auto found = find_mount(path);
  if (!found) {
    const std::string why = found.error().errno_value == ENODEV ? path + " is not in a ppmr mount"
                                                                : found.error().message;
    return command_failure(ExitCode::kNotMounted, why + " (`ppmr status` lists the mounts)");
  }
  const std::string& remainder = found->remainder;
  if (remainder.empty()) {
    return command_failure(ExitCode::kNotMounted,
                           path + " is the mount itself: name a checkpoint in it, as in " +
                               found->mount.mountpoint + "/NAME");
  }
  const size_t slash = std::min(remainder.find('/'), remainder.size());
  CheckpointPath checkpoint{found->mount, remainder.substr(0, slash), "", ""};
  if (slash < remainder.size()) checkpoint.inside = remainder.substr(slash + 1);
  std::error_code error;
  checkpoint.path =
      (path[0] == '/' ? std::filesystem::path(path) : std::filesystem::current_path(error) / path);
  while (checkpoint.path.size() > 1 && checkpoint.path.back() == '/') checkpoint.path.pop_back();
  return checkpoint;
}

CommandResult<json> ask(const MountEntry& mount, const json& request, milliseconds patience) {
  return judge(call(mount.source, request, patience), mount);
}

void fail_requests_if_silent(const MountEntry& mount) {
  const auto alive = ask(mount, to_request(request::Status{}), kDaemonSilence);
  if (!alive && alive.error().exit_code == ExitCode::kDaemonSilent) {
    (void)umount2(mount.mountpoint.c_str(), MNT_FORCE);
  }
}

CommandResult<json> ask_at_length(const MountEntry& mount, json request,
                                  std::optional<milliseconds> timeout, Timeout limits,
                                  std::vector<UniqueFd> descriptors) {
  auto deadline = timeout ? Clock::now() + *timeout : Clock::time_point::max();
  if (timeout) request["timeout_ms"] = timeout->count();
  const milliseconds slice = timeout ? std::min(kWaitSlice, *timeout / 4) : kWaitSlice;
  std::optional<uint64_t> bytes;
  ControlCall control_call;
  if (Status sent = control_call.send(mount.source, request, kDaemonPatience, descriptors); !sent) {
    return tl::unexpected(unreachable(mount, sent.error()));
  }
  descriptors.clear();  // from now on only the daemon has them
  for (;;) {
    const auto now = Clock::now();
    if (now >= deadline)
      return command_failure(ExitCode::kTimedOut, "the daemon sent no reply within --timeout");
    auto answer = control_call.answer(
        std::chrono::ceil<milliseconds>(std::min<Clock::duration>(deadline - now, slice)));
    if (answer || answer.error().errno_value != ETIMEDOUT) return judge(std::move(answer), mount);
    auto alive = ask(mount, to_request(request::Status{}));
    if (!alive) return alive;
    const uint64_t bytes_now = alive->value("bytes", uint64_t{0});
    const bool progresses = bytes && bytes_now != *bytes;
    if (progresses && timeout && limits == Timeout::kWithoutProgress) {
      deadline = Clock::now() + *timeout;
    }
    bytes = bytes_now;
  }
}

CommandResult<bool> wait_until_complete(const CheckpointPath& checkpoint,
                                        std::optional<milliseconds> timeout,
                                        const std::function<void(const std::string&)>& notice,
                                        milliseconds quiet_limit) {
  const auto deadline = timeout ? Clock::now() + *timeout : Clock::time_point::max();
  std::optional<uint64_t> bytes_before;
  Clock::time_point last_growth = Clock::now();
  bool quiet_noticed = false;
  milliseconds slice{0};  // the first request returns at once
  std::string noticed;
  for (;;) {
    const json request = to_request(request::Wait{.checkpoint = checkpoint.name,
                                                  .owner = "",
                                                  .until = request::Wait::kComplete,
                                                  .timeout = slice});
    const auto answer = call(checkpoint.mount.source, request, slice + kDaemonPatience);
    if (!answer) return tl::unexpected(unreachable(checkpoint.mount, answer.error()));
    const Status verdict = accepted(*answer);
    if (verdict) return !noticed.empty();
    if (!is_temporary(verdict.error())) {
      return command_failure(ExitCode::kCheckpointFailed,
                             checkpoint.path + ": " + verdict.error().message);
    }

    const auto status = ask(checkpoint.mount, to_request(request::Status{}));
    if (!status) return tl::unexpected(status.error());
    const json* found = find_in(*status, checkpoint.name);
    const bool exists = found != nullptr;
    if (!exists && !timeout && !has_connected_source(*status)) {
      return command_failure(ExitCode::kCheckpointFailed,
                             "there is no checkpoint " + checkpoint.name + " in " +
                                 checkpoint.mount.mountpoint +
                                 ", and no source is connected that could send it");
    }
    const auto left = deadline - Clock::now();
    const std::string what = exists ? "be complete" : "appear";
    if (left <= Clock::duration::zero()) {
      return command_failure(ExitCode::kTimedOut, checkpoint.path + " did not " +
                                                      (exists ? "become complete" : what) +
                                                      " within " + format_time(*timeout));
    }
    if (noticed != what) notice("waiting for " + checkpoint.path + " to " + what);
    noticed = what;
    const uint64_t bytes = exists ? found->value("bytes", uint64_t{0}) : 0;
    if (std::exchange(bytes_before, bytes) != bytes) {
      last_growth = Clock::now();
      quiet_noticed = false;
    }
    if (exists && !quiet_noticed && Clock::now() - last_growth >= quiet_limit) {
      quiet_noticed = true;
      notice(checkpoint.path + " has not grown for " + format_time(quiet_limit) +
             ": if its dump has failed, remove it at the source (rm -r)");
    }
    slice = std::chrono::ceil<milliseconds>(
        std::min<Clock::duration>({left, kWaitSlice, std::max(quiet_limit, kRetryInterval)}));
    if (verdict.error().errno_value != ETIMEDOUT) {  // the daemon replied at once
      std::this_thread::sleep_for(std::min<Clock::duration>(left, kRetryInterval));
    }
  }
}

}  // namespace ppmr
