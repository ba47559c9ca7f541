#include "jobs/agent/evacuation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "jobs/agent/node_mount.h"
#include "migration/records/record_store.h"
#include "migration/relay/target_driver.h"
#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/run_command.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::seconds;

constexpr seconds kRecoverPatience{60};
constexpr seconds kCancelPatience{60};
constexpr std::chrono::milliseconds kStopInterval{500};
constexpr std::chrono::milliseconds kSupervisorInterval{50};
// MPI libraries delete their shared memory segments as soon as all ranks have opened them. CRIU
// writes the contents of deleted files ("ghosts") into its images, up to this size. It is the
// largest size that every CRIU accepts.
constexpr const char* kGhostLimit = "--ghost-limit=4095M";
constexpr const char* kDidNotBegin = "the migration did not begin";

struct MigrationOutput {
  json summary = json::object();
  std::string findings;  // the findings that stopped the migration, with their remedies
  std::string messages;
};

MigrationOutput parse_output(const std::string& text) {
  const auto append = [](std::string& to, const std::string& sentence) {
    if (!sentence.empty()) to += (to.empty() ? "" : "; ") + sentence;
  };
  MigrationOutput output;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object()) {
      append(output.messages, line);
      continue;
    }
    const std::string name = event.value("event", "");
    if (name == "summary") output.summary = event;
    if (name == "finding" && event.value("stops", false)) {
      append(output.findings, event.value("sentence", ""));
      append(output.findings, event.value("remedy", ""));
    }
  }
  return output;
}

// Runs `ppmr migrate` to its end, however long the move takes. Killing it would also kill CRIU, and
// leave the node's connections in repair mode. The move has its own time limit (--timeout), and
// `ppmr migrate --cancel` ends it in order. Returns the output. Errors: those of
// CriuProcess::start(); EAGAIN: `stop` was true, and the move continues without this process.
Result<std::string> run_move(const std::vector<std::string>& argv,
                             const std::function<bool()>& stop) {
  std::string text;
  auto process =
      CriuProcess::start({.argv = argv,
                          .show = [&text](const std::string& line) { text += line + "\n"; },
                          .background = true});
  if (!process) return failure(process.error());
  while (!(*process)->await_end(kStopInterval)) {
    if (!stop()) continue;
    (*process)->leave();
    return failure(EAGAIN, "the agent ends: the move continues without it");
  }
  return text;
}

// Returns the records of the node's migrations to this host. Fails if a record that cannot be read,
// or is set aside, may be the record of such a migration.
Result<std::vector<OwnershipRecord>> find_arrivals(const EvacuationOptions& options,
                                                   const HostNode& node) {
  auto store = RecordStore::open(options.state_directory);
  if (!store) return failure(store.error());
  auto records = store->list();
  if (!records) return failure(records.error());
  const auto is_of_node = [&](const OwnershipRecord& record) {
    return record.trees.size() == 1 && record.trees[0].container.name == node.spec.container();
  };
  std::erase_if(*records, [&](const OwnershipRecord& record) {
    return record.role != MigrationRole::kTarget || !is_of_node(record);
  });
  const auto unreadable = store->list_unreadable(MigrationRole::kTarget);
  if (!unreadable) return failure(unreadable.error());
  for (const UnreadableRecord& record : *unreadable) {
    if (!record.earlier || is_of_node(*record.earlier)) return failure(record.error);
  }
  return records;
}

// Returns the record of the migration that moves `node`. Errors: ENOENT: it has not begun.
Result<OwnershipRecord> read_move(const EvacuationOptions& options, const HostNode& node) {
  const auto store = RecordStore::open(options.state_directory);
  if (!store) return failure(store.error());
  return store->read(node.migration, MigrationRole::kSource);
}

// Returns the record of the migration that moves `node`. If the migration has not begun, first
// writes an aborted record. A `ppmr migrate` of an earlier agent may still be checking both hosts;
// it writes its record afterwards, and then fails because of the aborted record.
Result<OwnershipRecord> take_back(const EvacuationOptions& options, const HostNode& node) {
  auto move = read_move(options, node);
  if (move || move.error().errno_value != ENOENT) return move;
  const auto store = RecordStore::open(options.state_directory);
  if (!store) return failure(store.error());
  OwnershipRecord record;
  record.id = node.migration;
  record.endpoint = json::object();
  record.error = kDidNotBegin;
  record.trees.resize(1);
  record.trees[0].name = record.trees[0].checkpoint = node.spec.container();
  auto aborted = store->create_aborted(std::move(record));
  if (aborted || aborted.error().errno_value != EEXIST) return aborted;
  return read_move(options, node);  // the migration was faster
}

// Aborts the restore. Errors: those of abort_arrival().
//
// According to the node's home, this host may run no copy of the node. So this function
// discards even a copy that waits for the decision of its source, which may be dead. If the source
// decides at the same moment that the target runs the node, the node is lost, and its job with it.
Status abort_restore(const RecordStore& store, OwnershipRecord record,
                     std::chrono::steady_clock::time_point deadline) {
  if (record.state() == MigrationState::kRestoring || record.state() == MigrationState::kReady) {
    (void)take_target_step(store, record.id,
                           target_event::Abort{"the node no longer belongs to this host"});
    // The record may have changed in the meantime.
    auto now = store.read(record.id, record.role);
    if (!now) return failure(now.error());
    record = std::move(*now);
  }
  const auto still = [&](const char* what) {
    return failure(EBUSY, fmt::format("{} {}: try again", record.trees[0].container.name, what));
  };
  const ProcessIdentity& supervisor = record.trees[0].supervisor;
  // The migration may be decided. Then a supervisor that is alive lets the node run soon. A
  // supervisor that has ended has given up, and is no obstacle.
  if (record.state() == MigrationState::kRunning && is_alive(supervisor)) {
    return still("is about to run here");
  }
  while (record.state() == MigrationState::kAborted && is_alive(supervisor)) {
    if (std::chrono::steady_clock::now() > deadline) return still("is still being restored here");
    std::this_thread::sleep_for(kSupervisorInterval);
  }
  return {};
}

MoveReport report_of(const OwnershipRecord& record) {
  using enum MigrationState;
  MoveReport report{.error = record.first_error()};
  if (record.state() == kAborted) report.result = MoveResult::kStayed;
  // The target runs the node only after the notification of the decision.
  if (record.state() == kFinished || (record.state() == kCommitted && record.peer_notified)) {
    report.result = MoveResult::kMoved;
    report.error.clear();
  }
  return report;
}

}  // namespace

std::vector<std::string> credential_words(const Credentials& credentials) {
  std::vector<std::string> words;
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  add("--key-file", credentials.key_file);
  add("--tls-cert", credentials.certificate.certificate);
  add("--tls-key", credentials.certificate.private_key);
  add("--tls-ca", credentials.certificate.authority);
  add("--crl", credentials.revocation_list);
  for (const std::string& peer : credentials.allowed_peers) add("--allow-peer", peer);
  return words;
}

std::vector<std::string> job_node_criu_options() {
  return {"--tcp-established", "--file-locks", kGhostLimit};
}

void remove_source_mount(const EvacuationOptions& options, const HostNode& node) {
  NodeMount::remove(options, node.spec.container());
}

MoveReport move_result(const EvacuationOptions& options, const HostNode& node) {
  if (node.migration.empty()) return {.result = MoveResult::kStayed, .error = kDidNotBegin};
  const auto move = take_back(options, node);
  if (!move) return {.error = move.error().message};
  if (is_alive(move->coordinator)) return {.error = "ppmr migrate runs"};
  if (!is_over(move->state()) || !move->peer_notified) {
    auto recovered = run_command({options.program, "migrate", "--recover", move->id, "--json",
                                  "--state-dir", options.state_directory},
                                 kRecoverPatience);
    if (!recovered) spdlog::warn("{}: {}", node.spec.container(), recovered.error().message);
  }
  const auto now = read_move(options, node);
  return now ? report_of(*now) : MoveReport{.error = now.error().message};
}

Status abort_arrival(const EvacuationOptions& options, const HostNode& node,
                     std::chrono::milliseconds patience) {
  const auto store = RecordStore::open(options.state_directory);
  if (!store) return failure(store.error());
  const auto records = find_arrivals(options, node);
  if (!records) return failure(records.error());
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (const OwnershipRecord& record : *records) {
    if (Status ended = abort_restore(*store, record, deadline); !ended) return ended;
  }
  return {};
}

bool has_arrived(const EvacuationOptions& options, const HostNode& node,
                 std::chrono::seconds patience) {
  const auto store = RecordStore::open(options.state_directory);
  if (!store || node.migration.empty()) return false;
  const auto record = store->read(node.migration, MigrationRole::kTarget);
  if (!record || record->has_losses()) return false;
  const bool runs =
      record->state() == MigrationState::kRunning || record->state() == MigrationState::kFinished;
  const auto age = std::chrono::nanoseconds(realtime_ns() - record->history().back().at_ns);
  return runs && age > patience;
}

Status cancel_move(const EvacuationOptions& options, const HostNode& node) {
  if (node.migration.empty()) return failure(EAGAIN, "the move has not begun: try again");
  auto cancelled = run_command({options.program, "migrate", "--cancel", node.migration,
                                "--state-dir", options.state_directory},
                               kCancelPatience);
  if (!cancelled) return failure(cancelled.error());
  if (cancelled->succeeded) return {};
  while (cancelled->text.ends_with('\n')) cancelled->text.pop_back();
  return failure(ECANCELED, cancelled->text);
}

MoveReport move_job_node(const EvacuationOptions& options, const HostNode& node,
                         const std::string& to, const MoveLimits& limits,
                         const std::function<bool()>& stop) {
  const auto mount = NodeMount::open(options, node.spec.container(), to);
  if (!mount) return {.result = MoveResult::kStayed, .error = mount.error().message};
  std::vector<std::string> argv = {
      options.program, "migrate", "--runc",      node.spec.container(),   "--mount",
      mount->path(),   "--json",  "--state-dir", options.state_directory, "--id",
      node.migration};
  for (const std::string& option : migrate_options(limits)) argv.push_back(option);
  argv.emplace_back("--");
  for (const std::string& option : job_node_criu_options()) argv.push_back(option);
  const auto ended = run_move(argv, stop);
  if (!ended && ended.error().errno_value == EAGAIN) return {.error = ended.error().message};
  // If `ppmr migrate` has ended without a record, it can no longer begin a migration. So this does
  // not call move_result(), which would add an aborted migration to the history.
  const auto move = read_move(options, node);
  const bool did_not_begin = ended && !move && move.error().errno_value == ENOENT;
  MoveReport report = did_not_begin
                          ? MoveReport{.result = MoveResult::kStayed, .error = kDidNotBegin}
                          : move_result(options, node);
  if (!ended) {
    if (report.error.empty()) report.error = ended.error().message;
    return report;
  }
  const MigrationOutput output = parse_output(*ended);
  const json trees = output.summary.value("trees", json::array());
  if (!trees.empty()) {
    const double downtime_s = trees[0].value("downtime_s", -1.0);
    if (downtime_s >= 0) report.downtime_s = downtime_s;
    const std::string error = trees[0].value("error", "");
    if (report.result == MoveResult::kStayed && !error.empty()) report.error = error;
  } else if (report.result == MoveResult::kStayed) {
    report.error = output.findings.empty() ? output.messages : output.findings;
  }
  return report;
}

}  // namespace ppmr
