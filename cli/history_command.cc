// `ppmr history`: prints the migrations in the records of this node, in both directions, and the
// processes whose epochs this node sends or keeps.
//
// Rejected: to read the audit trail, which may be in syslog alone. The record has all that the
// audit trail has about a migration, except the user who began it.
#include "cli/history_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/host_name.h"
#include "base/json_text.h"
#include "cli/history_view.h"
#include "cli/status_samples.h"
#include "daemon/command_line/command_error.h"
#include "daemon/command_line/output.h"
#include "migration/epochs/epoch_store.h"
#include "migration/target/takeover.h"

namespace ppmr {
namespace {

Result<std::vector<OwnershipRecord>> read_records(const HistoryCommand& command,
                                                  std::vector<Error>& unreadable) {
  std::error_code error;
  // This command only reads, so it must not create the directory.
  if (!std::filesystem::exists(command.state_directory, error)) {
    if (error) return system_failure("read", command.state_directory, error.value());
    return std::vector<OwnershipRecord>{};
  }
  auto store = RecordStore::open(command.state_directory);
  if (!store) return failure(store.error());
  using std::chrono::nanoseconds;
  const int64_t from_ns = command.since ? realtime_ns() - nanoseconds(*command.since).count() : 0;
  return store->list_for_display(from_ns, &unreadable);
}

// Adds the protected processes whose partner this node is. This command only reads, so it does not
// create the tmpfs of the epochs.
Status add_kept(const std::string& state_directory, const std::string& node,
                std::vector<ProtectedProcess>& processes) {
  const auto epochs = EpochStore::open_existing();
  if (!epochs) return failure(epochs.error());
  if (!*epochs) return {};
  const auto all = (*epochs)->list();
  if (!all) return failure(all.error());
  if (all->empty()) return {};
  const auto records = RecordStore::open(state_directory);
  if (!records) return failure(records.error());
  Status all_read;
  for (const EpochState& kept : *all) {
    const auto takeover = takeover_state(*records, kept);
    if (!takeover) {
      all_read = failure(takeover.error());
      continue;
    }
    auto process = describe_protected(kept, *takeover, node, realtime_ns());
    if (process) processes.push_back(std::move(*process));
  }
  return all_read;
}

// Adds the protected processes whose epochs leave through the mounts of this node.
Status add_sent(const std::string& node, std::vector<ProtectedProcess>& processes) {
  const auto mounts = chosen_mounts("");
  if (!mounts) return failure(EIO, mounts.error().message);
  Status all_replied;
  for (const StatusSample& sample : sample_status(*mounts)) {
    if (sample.status) {
      for (auto& process : protected_through(*sample.status, node)) {
        processes.push_back(std::move(process));
      }
    } else {
      all_replied =
          failure(EIO, fmt::format("{}: cannot list the processes that it protects: {}",
                                   sample.mount.mountpoint, sample.status.error().message));
    }
  }
  return all_replied;
}

std::string nothing_text(const HistoryCommand& command) {
  return fmt::format(
      "no {}migration {}in the records of this node ({}), which are kept for {} days\n",
      command.failed ? "failed " : "", command.since ? "of that time " : "",
      command.state_directory, kRecordsKept.count() / 24);
}

}  // namespace

Result<std::chrono::seconds> parse_duration(const std::string& text) {
  constexpr int64_t kNumberMax = 1'000'000'000;
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (error == std::errc() && number >= 0 && number <= kNumberMax) {
    if (unit.empty() || unit == "s") return std::chrono::seconds(number);
    if (unit == "m" || unit == "min") return std::chrono::minutes(number);
    if (unit == "h") return std::chrono::hours(number);
    if (unit == "d" && number <= kNumberMax / 100) return std::chrono::hours(24 * number);
  }
  return failure(EINVAL, fmt::format("invalid time '{}': expected a whole number with the unit s, "
                                     "m, h or d, e.g. 90m or 7d",
                                     text));
}

int HistoryCommand::run() const {
  std::vector<Error> unreadable;
  const auto records = read_records(*this, unreadable);
  if (!records) return report("history", {ExitCode::kFailure, records.error().message}, json);
  for (const Error& error : unreadable) print_to(stderr, "ppmr history: {}\n", error.message);
  const std::string node = host_name();
  std::vector<PastMigration> shown;
  std::string lines;
  for (const OwnershipRecord& record : *records) {
    PastMigration past = describe_migration(record, node);
    if (failed && !has_failed(past)) continue;
    if (json) lines += json_text(history_json(record, past)) + "\n";
    shown.push_back(std::move(past));
  }
  std::vector<ProtectedProcess> processes;
  if (!failed) {
    for (const Status& added :
         {add_sent(node, processes), add_kept(state_directory, node, processes)}) {
      if (added) continue;
      unreadable.push_back(added.error());
      print_to(stderr, "ppmr history: {}\n", added.error().message);
    }
  }
  if (json) {
    for (const ProtectedProcess& process : processes) {
      lines += json_text(protected_json(process)) + "\n";
    }
    print_whole(stdout, "{}", lines);
    return to_int(unreadable.empty() ? ExitCode::kSuccess : ExitCode::kFailure);
  }
  if (shown.empty()) {
    print_text(stdout, nothing_text(*this));
  } else {
    print_text(stdout, history_text(shown, columns_of_output(stdout)));
  }
  if (!processes.empty()) {
    print_text(stdout, "\n" + protected_text(processes, columns_of_output(stdout)));
  }
  return to_int(unreadable.empty() ? ExitCode::kSuccess : ExitCode::kFailure);
}

}  // namespace ppmr
