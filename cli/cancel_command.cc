#include "cli/cancel_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "base/json_text.h"
#include "cli/find_migration.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "migration/relay/audit_events.h"
#include "migration/relay/source_driver.h"
#include "migration/settle/settle.h"

namespace ppmr {
namespace {

constexpr const char* kWhy = "cancelled by ppmr migrate --cancel";
constexpr std::chrono::milliseconds kPatience{10'000};

// Returns why the migration cannot be cancelled; empty: it can be cancelled.
std::string obstacle_of(const OwnershipRecord& record) {
  if (record.role == MigrationRole::kTarget) {
    return fmt::format("the processes come from {}: cancel it there", record.peer);
  }
  if (record.state() == MigrationState::kAborted) {
    return "it is aborted already: " + record.error;
  }
  if (record.state() < MigrationState::kCommitted) return "";
  return "the decision is made: the processes run at the target, or will as soon as both nodes can "
         "reach each other";
}

}  // namespace

int CancelCommand::run() const {
  ignore_sigpipe();
  const auto fail = [&](const std::string& what, ExitCode code = ExitCode::kFailure) {
    return report("migrate", {code, what}, json);
  };
  const auto store = RecordStore::open(state_directory);
  if (!store) return fail(store.error().message);
  const auto record = find_migration(*store, digits);
  if (!record) return fail(record.error().message, record.error().exit_code);
  const std::string& id = record->id;
  if (const std::string obstacle = obstacle_of(*record); !obstacle.empty()) {
    return fail(fmt::format("migration {} cannot be cancelled: {}", id, obstacle),
                ExitCode::kUsage);
  }
  const auto step = SourceDriver(*store, id).take(source_event::GiveUp{kWhy});
  if (!step) {
    return fail(fmt::format("migration {} cannot be cancelled: {}", id, step.error().message));
  }
  audit_migration(step->record, "cancelled", {{"by_uid", getuid()}});
  const Settled settled = settle_source(*store, step->record, kPatience);
  if (json) {
    print_whole(stdout, "{}\n",
                json_text({{"migration", id}, {"open", settled.open}, {"what", settled.what}}));
  } else {
    print_to(stdout, "{} at the source: {}\n", id, settled.what);
  }
  return to_int(settled.open ? ExitCode::kMigrationOpen : ExitCode::kSuccess);
}

}  // namespace ppmr
