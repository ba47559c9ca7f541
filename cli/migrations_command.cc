// The records say what moves. The daemons of the mounts say how many bytes they have sent. A rate
// needs two samples of these bytes.
#include "cli/migrations_command.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json_text.h"
#include "cli/status_samples.h"
#include "cli/watch_view.h"
#include "daemon/command_line/output.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kRateInterval{200};
constexpr size_t kColumns = 80;

// Returns whether the list shows the migration. At the source, a migration is settled as soon as
// the target has taken over the processes. The list shows it until all memory is in place, as long
// as its coordinator waits for that.
bool is_watched(const OwnershipRecord& record, const MigrationNotes& notes) {
  if (!record.is_settled()) return true;
  const bool fills = std::any_of(notes.trees.begin(), notes.trees.end(),
                                 [](const TreeNotes& tree) { return tree.missing_bytes > 0; });
  return fills && is_alive(record.coordinator);
}

// Adds the migrations that the list shows, and their notes.
Status add_unsettled(const MigrationsCommand& command, WatchPage& page,
                     std::vector<Error>& unreadable) {
  // This command only reads, so it must not create the directory.
  if (access(command.state_directory.c_str(), F_OK) != 0) return {};
  const auto store = RecordStore::open(command.state_directory);
  if (!store) return failure(store.error());
  auto records = store->list_for_display(0, &unreadable);
  if (!records) return failure(records.error());
  for (OwnershipRecord& record : *records) {
    MigrationNotes notes = read_notes(*store, record);
    if (!is_watched(record, notes)) continue;
    page.notes.emplace(RecordStore::name_of(record.id, record.role), std::move(notes));
    page.migrations.push_back(std::move(record));
  }
  return {};
}

std::vector<WatchedMount> sample_mounts() {
  const auto mounts = read_ppmr_mounts();
  if (!mounts || mounts->empty()) return {};
  const std::vector<StatusSample> before = sample_status(*mounts);
  std::this_thread::sleep_for(kRateInterval);
  std::vector<WatchedMount> found;
  for (StatusSample& sample : sample_status(*mounts, before)) {
    add_rates_since(before, sample);
    found.push_back({sample.mount, std::move(sample.status), {}});
  }
  return found;
}

std::string json_lines(const WatchPage& page) {
  std::string text;
  for (const OwnershipRecord& record : page.migrations) {
    const MigrationNotes& notes = page.notes_of(record);
    for (size_t i = 0; i < record.trees.size(); ++i) {
      const TreeRecord& tree = record.trees[i];
      const TreeBytes moved = bytes_of(page, record, tree);
      const TreePart part = part_of(record, i, notes, moved);
      text += json_text({{"migration", record.id},
                         {"role", to_string(record.role)},
                         {"state", to_string(record.state())},
                         {"phase", phase_of(record, tree, notes)},
                         {"round", part.round},
                         {"pause_began_ns", notes.pause_began_ns},
                         {"promised_s", notes.max_downtime.count() / 1e3},
                         {"began_ns", record.history().front().at_ns},
                         {"peer", record.peer},
                         {"mountpoint", record.mountpoint},
                         {"coordinator_pid", record.coordinator.pid},
                         {"pid", tree.root},
                         {"name", tree.name},
                         {"bytes", moved.bytes},
                         {"expected_bytes", tree.expected_bytes},
                         {"part_bytes", part.bytes},
                         {"part_expected_bytes", part.expected_bytes},
                         {"rate_bytes_per_s", moved.rate_bytes_per_s},
                         {"error", record.first_error()}}) +
              "\n";
    }
  }
  return text;
}

}  // namespace

int MigrationsCommand::run() const {
  std::vector<Error> unreadable;
  WatchPage page;
  Status read = add_unsettled(*this, page, unreadable);
  if (read && !page.migrations.empty()) {
    page = {.mounts = sample_mounts()};
    unreadable.clear();
    read = add_unsettled(*this, page, unreadable);  // again, to fit the time of the samples
  }
  if (!read) return report("migrations", {ExitCode::kFailure, read.error().message}, json);
  for (const Error& error : unreadable) print_to(stderr, "ppmr migrations: {}\n", error.message);
  if (json) {
    print_whole(stdout, "{}", json_lines(page));
  } else if (page.migrations.empty()) {
    print_to(stdout, "no migration is in progress or open on this node\n");
  }
  if (!json) {
    const size_t terminal = columns_of_output(stdout);
    const size_t columns = terminal == 0 ? kColumns : terminal;
    for (const ScreenLine& line : migration_lines(page, columns, charset_of_environment())) {
      std::string text;
      for (const Span& span : line) text += span.text;
      print_to(stdout, "{}\n", text.substr(text.find_first_not_of(' ')));
    }
  }
  return to_int(unreadable.empty() ? ExitCode::kSuccess : ExitCode::kFailure);
}

}  // namespace ppmr
