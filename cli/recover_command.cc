// The decision is in the source's record. If the record is committed, the target runs the
// processes; otherwise the source runs them. A target in doubt waits until its source recovers. It
// never guesses.
#include "cli/recover_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/exit_code.h"
#include "base/json_text.h"
#include "cli/find_migration.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/unit_fate.h"
#include "migration/settle/settle.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kDefaultTimeout{10'000};

void settle_containers(const OwnershipRecord& record) {
  for (const TreeRecord& tree : record.trees) {
    const Status settled = settle_container_at_source(record, tree);
    if (!settled) print_to(stderr, "ppmr migrate: {}\n", settled.error().message);
  }
}

std::string pids_of(const OwnershipRecord& record) {
  std::string text;
  for (const TreeRecord& tree : record.trees) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", tree.root, tree.name);
  }
  return text;
}

}  // namespace

int RecoverCommand::run() const {
  ignore_sigpipe();
  auto store = RecordStore::open(state_directory);
  if (!store) return report("migrate", {ExitCode::kFailure, store.error().message}, json);
  const std::vector<std::string> set_aside = store->set_unreadable_aside();
  std::vector<Error> unreadable;
  auto records = store->list(&unreadable);
  if (!records) return report("migrate", {ExitCode::kFailure, records.error().message}, json);
  std::string id;  // empty: all
  if (!digits.empty()) {
    const auto chosen = choose_id(*records, digits, state_directory);
    if (!chosen) return report("migrate", chosen.error(), json);
    id = *chosen;
  }
  bool open = false;
  bool found = false;
  for (const std::string& report : set_aside) {
    open = true;
    print_to(stderr, "ppmr migrate: {}\n", report);
  }
  for (const Error& error : unreadable) {
    open = true;
    print_to(stderr, "ppmr migrate: {}\n", error.message);
  }
  for (OwnershipRecord& record : *records) {
    if (!id.empty() && record.id != id) continue;
    // If the relay was killed before it removed the moved container, runc still has the container:
    // removes it. After an abort, settle_container_at_source() would resume the container, although
    // the operator may have paused it since.
    if (record.role == MigrationRole::kSource && record.state() == MigrationState::kFinished) {
      settle_containers(record);
    }
    if (id.empty() && record.is_settled()) continue;
    found = true;
    const Settled verdict = record.role == MigrationRole::kSource
                                ? settle_source(*store, record, timeout.value_or(kDefaultTimeout))
                                : settle_target(*store, record);
    open = open || verdict.open;
    const auto now = store->read(record.id, record.role);
    const OwnershipRecord& after = now ? *now : record;
    if (json) {
      print_whole(stdout, "{}\n",
                  json_text({{"migration", record.id},
                             {"role", to_string(record.role)},
                             {"state", to_string(after.state())},
                             {"owner", after.owner()},
                             {"open", verdict.open},
                             {"what", verdict.what},
                             {"record", after}}));
    } else {
      print_to(stdout, "{} at the {}: {}: {}\n", record.id, to_string(record.role), pids_of(record),
               verdict.what);
    }
  }
  settle_units_at_source(*store);
  if (!found && !json) print_to(stdout, "no interrupted migration\n");
  return to_int(open ? ExitCode::kMigrationOpen : ExitCode::kSuccess);
}

}  // namespace ppmr
