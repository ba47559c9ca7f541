#include "cli/pause_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "base/json_text.h"
#include "cli/find_migration.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "migration/relay/audit_events.h"
#include "migration/source/pause.h"

namespace ppmr {
namespace {

// Returns why the migration has no rounds that could be paused; empty: it may have rounds.
std::string obstacle_of(const OwnershipRecord& record) {
  using enum MigrationState;
  if (record.role == MigrationRole::kTarget) {
    return fmt::format("the processes come from {}: pause or resume it there", record.peer);
  }
  if (record.state() == kAborted) return "it is aborted already: " + record.error;
  if (record.state() >= kCommitted) {
    return "the decision is made: the processes run at the target, or will as soon as both nodes "
           "can reach each other";
  }
  if (!record.plan.is_live) return "it copies no memory while the processes run";
  if (record.state() > kDumping) return "its processes are frozen, and a pause would prolong that";
  return "";
}

}  // namespace

int PauseCommand::run() const {
  ignore_sigpipe();
  const char* const verb = resume ? "resumed" : "paused";
  const auto fail = [&](const std::string& what, ExitCode code) {
    return report("migrate", {code, what}, json);
  };
  const auto store = RecordStore::open(state_directory);
  if (!store) return fail(store.error().message, ExitCode::kFailure);
  const auto record = find_migration(*store, digits);
  if (!record) return fail(record.error().message, record.error().exit_code);
  const std::string& id = record->id;
  const auto refuse = [&](const std::string& why) {
    return fail(fmt::format("migration {} cannot be {}: {}", id, verb, why), ExitCode::kUsage);
  };
  if (const std::string obstacle = obstacle_of(*record); !obstacle.empty()) return refuse(obstacle);
  const std::string directory = store->path_of(id, MigrationRole::kSource);
  std::chrono::nanoseconds paused{0};
  if (resume) {
    const auto took = end_pause(directory);
    if (!took && took.error().errno_value == ENOENT) return refuse(took.error().message);
    if (!took) return fail(took.error().message, ExitCode::kFailure);
    paused = *took;
  } else if (Status begun = begin_pause(directory); !begun) {
    const int error = begun.error().errno_value;
    if (error == EBUSY || error == EALREADY) return refuse(begun.error().message);
    return fail(begun.error().message, ExitCode::kFailure);
  }
  audit_migration(*record, verb, {{"by_uid", getuid()}});
  if (json) {
    print_whole(
        stdout, "{}\n",
        json_text({{"migration", id},
                   {"paused", !resume},
                   {"paused_ms", std::chrono::round<std::chrono::milliseconds>(paused).count()}}));
  } else if (resume) {
    const auto time = std::chrono::duration_cast<std::chrono::microseconds>(paused);
    print_to(stdout, "{}: its rounds go on after a pause of {}\n", id, format_time(time));
  } else {
    print_to(
        stdout,
        "{}: its rounds are paused, and its processes run on. To go on: ppmr migrate --resume {}\n",
        id, id.substr(0, 8));
  }
  return to_int(ExitCode::kSuccess);
}

}  // namespace ppmr
