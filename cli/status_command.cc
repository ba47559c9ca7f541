// `ppmr status`: queries the daemons of all mounts twice, because a rate needs two samples.
#include "cli/status_command.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/json_text.h"
#include "cli/status_samples.h"
#include "cli/status_view.h"
#include "cli/watch_command.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/terminal_style.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kRateInterval{200};
constexpr std::chrono::milliseconds kWatchInterval{1000};

std::string render(StatusSample& sample, const std::vector<StatusSample>& before, bool as_json) {
  if (!sample.status) {
    return as_json ? no_reply_json(sample.mount, sample.status.error())
                   : no_reply_text(sample.mount, sample.status.error());
  }
  add_rates_since(before, sample);
  return as_json ? json_text(*sample.status) + "\n"
                 : status_text(*sample.status, sample.mount, columns_of_output(stdout));
}

}  // namespace

int StatusCommand::run() const {
  const TerminalStyle style = TerminalStyle::of(STDOUT_FILENO);
  if (watch && !json && style.moves_cursor()) {
    return watch_status(mountpoint, state_directory, style.colours());
  }
  std::vector<StatusSample> before;
  for (;;) {
    const auto mounts = chosen_mounts(mountpoint);
    if (!mounts) return report("status", mounts.error(), json);
    std::vector<StatusSample> now;
    if (before.empty() && !mounts->empty()) {
      before = sample_status(*mounts);
      std::this_thread::sleep_for(kRateInterval);
      now = sample_status(*mounts, before);
    } else {
      now = sample_status(*mounts);
    }
    std::string page;
    bool all_replied = true;
    for (StatusSample& sample : now) {
      page += render(sample, before, json);
      all_replied = all_replied && sample.status;
    }
    if (mounts->empty() && !json) page += "no ppmr mounts\n";
    if (json) {
      print_whole(stdout, "{}", page);
    } else {
      print_text(stdout, page);
    }
    if (!watch || std::ferror(stdout))
      return to_int(all_replied ? ExitCode::kSuccess : ExitCode::kDaemonSilent);
    before = std::move(now);
    std::this_thread::sleep_for(kWatchInterval);
  }
}

}  // namespace ppmr
