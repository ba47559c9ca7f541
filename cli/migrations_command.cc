// The records say what moves, and the daemons of the mounts how many bytes have gone. A rate needs
// two samples of them.
#include "cli/migrations_command.h"

#include <unistd.h>

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

Result<std::vector<OwnershipRecord>> unsettled(const MigrationsCommand& command,
                                               std::vector<Error>& unreadable) {
  // This command only reads, so it must not create the directory.
  if (access(command.state_directory.c_str(), F_OK) != 0) return std::vector<OwnershipRecord>{};
  const auto store = RecordStore::open(command.state_directory);
  if (!store) return failure(store.error());
  auto records = store->list_for_display(0, &unreadable);
  if (records) std::erase_if(*records, [](const auto& record) { return record.is_settled(); });
  return records;
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
    for (const TreeRecord& tree : record.trees) {
      const TreeBytes moved = bytes_of(page, record, tree);
      text += json_text({{"migration", record.id},
                         {"role", to_string(record.role)},
                         {"state", to_string(record.state())},
                         {"phase", phase_of(record, tree)},
                         {"began_ns", record.history().front().at_ns},
                         {"peer", record.peer},
                         {"mountpoint", record.mountpoint},
                         {"coordinator_pid", record.coordinator.pid},
                         {"pid", tree.root},
                         {"name", tree.name},
                         {"bytes", moved.bytes},
                         {"expected_bytes", tree.expected_bytes},
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
  auto records = unsettled(*this, unreadable);
  std::vector<WatchedMount> mounts;
  if (records && !records->empty()) {
    mounts = sample_mounts();
    unreadable.clear();
    records = unsettled(*this, unreadable);  // of the time of the samples
  }
  if (!records) return report("migrations", {ExitCode::kFailure, records.error().message}, json);
  for (const Error& error : unreadable) print_to(stderr, "ppmr migrations: {}\n", error.message);
  const WatchPage page{"", "", std::move(*records), "", std::move(mounts)};
  if (json) {
    print_to(stdout, "{}", json_lines(page));
  } else if (page.migrations.empty()) {
    print_to(stdout, "no migration is in progress or open on this node\n");
  }
  if (!json) {
    const size_t terminal = columns_of_terminal(STDOUT_FILENO);
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
