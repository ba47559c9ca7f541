#include "migration/target/migration_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/exit_code.h"
#include "base/json_text.h"
#include "base/line_socket.h"
#include "base/number_file.h"
#include "base/parse_json.h"
#include "base/unique_fd.h"
#include "daemon/command_line/output.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "migration/records/record_store.h"
#include "migration/records/source_name.h"
#include "migration/relay/agent_requests.h"
#include "migration/relay/audit_events.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/target_driver.h"
#include "migration/relay/unit_fate.h"
#include "migration/target/epoch_requests.h"
#include "migration/target/restore_remains.h"
#include "migration/target/supervisors.h"
#include "migration/target/tree_arrival.h"
#include "mount/mount_table.h"
#include "preflight/policy/restart_policy.h"
#include "preflight/preflight.h"
#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/passed_options.h"
#include "restart_loader/pager/pager.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr MigrationRole kRole = MigrationRole::kTarget;
constexpr size_t kLineMaxBytes = 4 << 20;
constexpr milliseconds kLookMax{1000};
constexpr milliseconds kDaemonPatience{2000};
constexpr milliseconds kSendPatience{10'000};

json refusal(const Error& error) {
  return {
      {"ok", false}, {"errno", error.errno_value}, {"error", error.message}, {"no_record", false}};
}

json answer_of(const Result<OwnershipRecord>& record) {
  if (!record) return refusal(record.error());
  return {{"ok", true}, {"record", *record}};
}

// Returns the ID of the migration that the request is about; empty: it has none.
std::string id_in(const agent_request::OfMigration& request) { return request.id; }
std::string id_in(const agent_request::Prepare& request) {
  const auto migration = read_fields<agent_request::OfMigration>(request.record);
  return migration ? migration->id : "";
}

// Returns the state directory without symbolic links: the source compares it as text.
std::string state_directory(const RecordStore& store) {
  std::error_code failed;
  const auto path = std::filesystem::weakly_canonical(store.directory(), failed);
  return failed ? store.directory() : path.string();
}

// Removes the checkpoints of trees whose supervisor has ended or given up. Any other supervisor
// removes the checkpoint of its tree itself.
void remove_abandoned_checkpoints(const RecordStore& store, const OwnershipRecord& record) {
  for (size_t i = 0; i < record.trees.size(); ++i) {
    const TreeRecord& tree = record.trees[i];
    const bool has_ended = !is_alive(tree.supervisor);
    if (has_ended || !tree.error.empty()) (void)remove_checkpoint(record, tree);
    if (has_ended) remove_built_files(store.path_of(record.id, MigrationRole::kTarget), i);
  }
}

class Agent {
 public:
  Agent(RecordStore store, const MigrationAgent& options)
      : store_(std::move(store)), options_(options) {}

  json answer(const std::string& line) {
    const json request = parse_json(line);
    if (!request.is_object()) {
      return refusal({EINVAL,
                      "malformed request: not a JSON object, or with a number out of range "
                      "(install the same ppmr on both nodes)"});
    }
    try {
      return answer(request);
    } catch (const json::exception& error) {
      return refusal({EINVAL, std::string("malformed request: ") + error.what()});
    }
  }

 private:
  json answer(const json& message) {
    const auto asked = read_request<agent_request::Any>(message);
    if (!asked) return refusal(asked.error());
    return std::visit(EachKind{
                          [](const agent_request::Clock&) -> json {
                            return {{"ok", true}, {"clock_ns", realtime_ns()}};
                          },
                          [&](const PreflightRequest& request) { return preflight(request); },
                          [&](const agent_request::Prepare& request) {
                            return audited(request, "prepared", prepare(request));
                          },
                          [&](const agent_request::Look& request) {
                            return audited_refusal(request, look(request));
                          },
                          [&](const agent_request::Vote& request) {
                            return audited_refusal(request, vote(request));
                          },
                          [&](const agent_request::Decide& request) {
                            return audited(request, to_string(request.state), decide(request));
                          },
                          [&](const auto& of_protection) { return epoch(of_protection); },
                      },
                      *asked);
  }
  Result<RestartPolicy> restart_policy() const;
  template <typename Request>
  json audited(const Request& request, const std::string& outcome, json answer) const;
  template <typename Request>
  json audited_refusal(const Request& request, json answer) const;
  json preflight(const PreflightRequest& request);
  json prepare(const agent_request::Prepare& request) const;
  json look(const agent_request::Look& request) const;
  json vote(const agent_request::Vote& request) const;
  json decide(const agent_request::Decide& request) const;
  json epoch(const agent_request::AnyOfProtection& request) const;
  json carry_out(const TargetStep& step) const;
  void note_contact(const OwnershipRecord& record, bool is_paused) const;
  OwnershipRecord note_seen(const OwnershipRecord& record) const;
  json prepared(const Result<OwnershipRecord>& record) const;
  json refusal_to_read(const Error& error) const;
  json refusal_with(const Error& error, const std::string& id) const;
  std::string missing(const OwnershipRecord& record) const;
  Result<OwnershipRecord> read_of_peer(const agent_request::OfMigration& request) const;

  const RecordStore store_;
  const MigrationAgent& options_;
  std::optional<CriuAnswers> criu_;
};

// Reads the policy for each migration, so a change needs no restart of the daemon.
Result<RestartPolicy> Agent::restart_policy() const {
  if (!options_.restart_policy.empty()) return read_restart_policy(options_.restart_policy);
  RestartPolicy policy;
  policy.everything = options_.allow_root_restart;
  return policy;
}

// Writes the outcome of a request into the audit trail, and returns the answer.
template <typename Request>
json Agent::audited(const Request& request, const std::string& outcome, json answer) const {
  if (answer.value("ok", false)) {
    if (const auto record = parse_record(answer.at("record"))) {
      audit_migration(*record, outcome, json::object());
    }
    return answer;
  }
  audit(options_.audit_file, "migration",
        {{"outcome", "refused"},
         {"request", Request::kName},
         {"migration", id_in(request)},
         {"role", "target"},
         {"peer", options_.peer},
         {"reason", answer.value("error", "")}});
  return answer;
}

// Writes only refusals of another peer into the audit trail, because a coordinator repeats these
// requests.
template <typename Request>
json Agent::audited_refusal(const Request& request, json answer) const {
  const bool is_foreign = !answer.value("ok", false) && answer.value("errno", 0) == EACCES;
  return is_foreign ? audited(request, "", std::move(answer)) : answer;
}

json Agent::preflight(const PreflightRequest& request) {
  auto policy = restart_policy();
  if (!policy) return refusal(policy.error());
  TargetContext context{
      .restart_policy = std::move(*policy), .store_free_bytes = -1, .drained_mount = ""};
  if (auto mount = find_mount(options_.mountpoint)) {
    const auto status = call(mount->mount.source, to_request(request::Status{}), kDaemonPatience);
    const json store = status ? status->value("store", json::object()) : json::object();
    context.store_free_bytes = store.value("free_bytes", context.store_free_bytes);
    if (status && status->value("draining", false)) context.drained_mount = options_.mountpoint;
  }
  if (!criu_) criu_.emplace(find_criu().value_or(""));
  return answer_preflight(request, context, *criu_);
}

json Agent::prepare(const agent_request::Prepare& request) const {
  auto record = parse_record(request.record);
  if (!record) return refusal(record.error());
  const agent_request::OfMigration migration{record->id, record->node_id};
  if (auto passed = check_passed_options(record->criu_options); !passed) {
    return refusal(passed.error());
  }
  if (record->hold_limit_ms <= 0 || milliseconds(record->hold_limit_ms) > kHoldLimitMax) {
    return refusal({EINVAL, fmt::format("--timeout of {} ms: must be more than 0 and at most 24 h",
                                        record->hold_limit_ms)});
  }
  if (auto criu = find_criu(); !criu) return refusal(criu.error());
  if (auto mount = find_mount(options_.mountpoint); !mount) return refusal(mount.error());
  auto policy = restart_policy();
  if (!policy) return refusal(policy.error());
  if (!record->unit.name.empty() && !policy->everything) {
    return refusal({EPERM, "units move only to a target with --allow-root-restart"});
  }
  record->restart_policy = to_json(*policy);
  record->role = kRole;
  record->peer_node_id = std::move(record->node_id);
  record->peer_state_directory.clear();
  record->node_id = read_node_id();
  record->boot_id = read_boot_id();
  record->incarnation = incarnation_here();
  record->mountpoint = options_.mountpoint;
  record->peer = options_.peer;
  record->audit_file = options_.audit_file;
  record->coordinator = {};
  for (TreeRecord& tree : record->trees) {
    tree.phase = TreePhase::kWaiting;
    tree.tasks.clear();
    tree.waiting_at.clear();
    tree.criu = tree.supervisor = {};
    tree.error.clear();
    tree.protected_as.clear();
  }
  auto created = store_.create(std::move(*record));
  // The coordinator repeats a request whose reply was lost.
  if (!created && created.error().errno_value == EEXIST) {
    return prepared(read_of_peer(migration));
  }
  if (!created) return refusal(created.error());
  store_.prune();
  if (Status expected = expect_unit_at_target(*created, store_.directory()); !expected) {
    (void)take_target_step(store_, created->id, target_event::Abort{expected.error().message});
    return refusal(expected.error());
  }
  for (size_t tree = 0; tree < created->trees.size(); ++tree) {
    auto started = expect_container_at_target(*created, created->trees[tree]);
    if (started) started = start_supervisor(store_, created->id, tree);
    if (!started) {
      const target_event::Failed failed{.tree = tree, .error = started.error().message};
      (void)take_target_step(store_, created->id, failed);
      return refusal(started.error());
    }
  }
  return prepared(created);
}

json Agent::prepared(const Result<OwnershipRecord>& record) const {
  json answer = answer_of(record);
  answer["state_directory"] = state_directory(store_);
  return answer;
}

// Names this node, because the source may ask a node that is not the target of the migration.
json Agent::refusal_to_read(const Error& error) const {
  json answer = refusal(error);
  answer["no_record"] = error.errno_value == ENOENT;
  answer["node_id"] = read_node_id();
  answer["state_directory"] = state_directory(store_);
  return answer;
}

Result<OwnershipRecord> Agent::read_of_peer(const agent_request::OfMigration& request) const {
  auto record = store_.read(request.id, kRole);
  if (!record) return record;
  const SourceName known{record->peer, record->peer_node_id};
  if (!is_same_source(known, {options_.peer, request.node_id})) {
    return failure(EACCES,
                   "migration " + request.id + " belongs to another source (" + record->peer + ")");
  }
  return record;
}

json Agent::look(const agent_request::Look& request) const {
  const std::string& id = request.id;
  auto record = read_of_peer(request);
  if (record) note_contact(*record, request.paused);
  if (record && record->version <= request.version) {
    const milliseconds timeout = std::clamp(request.timeout, milliseconds(0), kLookMax);
    record = store_.wait(id, kRole, request.version, timeout);
  }
  if (record && is_over(record->state())) return answer_of(note_seen(*record));
  if (!record) return refusal_to_read(record.error());
  auto step = take_target_step(store_, id, target_event::Look{});
  if (!step) return refusal(step.error());
  json answer = carry_out(*step);
  auto missing = json::array();
  for (size_t tree = 0; tree < step->record.trees.size(); ++tree) {
    missing.push_back(read_number(store_.work_path(id, kRole, tree) + kMissingBytesFile));
  }
  answer["missing_bytes"] = std::move(missing);
  return answer;
}

// Notes a contact of the coordinator, and a pause. A supervisor that waits for a tree ends its wait
// if nothing arrives, but not during a pause.
void Agent::note_contact(const OwnershipRecord& record, bool is_paused) const {
  store_.note_contact(record.id, kRole);
  if (!is_paused) return;
  for (size_t tree = 0; tree < record.trees.size(); ++tree) {
    (void)write_number(store_.work_path(record.id, kRole, tree) + kPausedFile,
                       static_cast<uint64_t>(realtime_ns()));
  }
}

json Agent::carry_out(const TargetStep& step) const {
  for (const TargetAction action : step.actions) {
    if (action == TargetAction::kRemoveCheckpoints) {
      remove_abandoned_checkpoints(store_, step.record);
    } else if (Status kept = ensure_supervisors(store_, step.record); !kept) {
      return refusal(kept.error());
    }
  }
  return answer_of(is_over(step.record.state()) ? note_seen(step.record) : step.record);
}

// Notes that the source has seen the outcome, which this answer contains. If the answer is lost,
// the source asks again.
OwnershipRecord Agent::note_seen(const OwnershipRecord& record) const {
  if (record.peer_notified) return record;
  const auto noted = store_.change(record.id, kRole, [](OwnershipRecord& latest) -> Status {
    latest.peer_notified = true;
    return {};
  });
  return noted ? *noted : record;
}

// Returns what is missing for a confirmed vote; empty: nothing. A target that is ready may not
// abort by itself, so its record says `ready` even after the images are gone.
std::string Agent::missing(const OwnershipRecord& record) const {
  for (const TreeRecord& tree : record.trees) {
    for (const std::string& path : {images_path(record, tree), memory_path(record, tree)}) {
      if (path.empty() || access(path.c_str(), F_OK) == 0) continue;
      return fmt::format("find checkpoint {}: {} (was the target's daemon restarted?)", path,
                         strerror(errno));
    }
  }
  return "";
}

json Agent::vote(const agent_request::Vote& request) const {
  const std::string& id = request.id;
  auto record = read_of_peer(request);
  if (!record) return refusal_to_read(record.error());
  store_.note_contact(id, kRole);
  const auto step =
      take_target_step(store_, id, target_event::Vote{},
                       {.incarnation = incarnation_here(), .missing = missing(*record)});
  return step ? answer_of(step->record) : refusal_with(step.error(), id);
}

json Agent::decide(const agent_request::Decide& request) const {
  const std::string& id = request.id;
  if (auto record = read_of_peer(request); !record) return refusal_to_read(record.error());
  TargetEvent event;
  if (request.state == MigrationState::kAborted) {
    event = target_event::Abort{request.error};
  } else if (request.state == MigrationState::kRunning) {
    event = target_event::Run{};
  } else {
    return refusal({EINVAL, fmt::format("'{}' is not a decision", to_string(request.state))});
  }
  const auto step = take_target_step(store_, id, event);
  return step ? carry_out(*step) : refusal_with(step.error(), id);
}

json Agent::epoch(const agent_request::AnyOfProtection& request) const {
  const auto policy = restart_policy();
  if (!policy) return refusal(policy.error());
  return EpochRequests(store_, {.mountpoint = options_.mountpoint,
                                .peer = options_.peer,
                                .audit_file = options_.audit_file,
                                .restart_policy = to_json(*policy)})
      .answer(request);
}

// The source decides what a refusal means, so it gets the record, too.
json Agent::refusal_with(const Error& error, const std::string& id) const {
  json answer = refusal(error);
  if (const auto record = store_.read(id, kRole)) answer["record"] = *record;
  return answer;
}

}  // namespace

std::string incarnation_here() {
  const auto daemon = identify(getppid()).value_or(ProcessIdentity{});
  std::string boot = read_boot_id();
  boot.erase(std::remove(boot.begin(), boot.end(), '\n'), boot.end());
  return fmt::format("{}/{}.{}", boot, daemon.pid, daemon.start_time);
}

int MigrationAgent::run() const {
  ignore_sigpipe();
  auto store = RecordStore::open(state_directory);
  const UniqueFd socket(fd);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  std::optional<Agent> agent;
  if (store) agent.emplace(*store, *this);
  std::string pending;
  std::string line;
  for (;;) {
    const auto forever = std::chrono::steady_clock::now() + std::chrono::hours(24 * 365);
    if (!read_line(fd, pending, line, kLineMaxBytes, forever)) return to_int(ExitCode::kSuccess);
    const json answer = agent ? agent->answer(line) : refusal(store.error());
    const auto deadline = std::chrono::steady_clock::now() + kSendPatience;
    if (!write_line(fd, json_text(answer), deadline)) return to_int(ExitCode::kFailure);
  }
}

}  // namespace ppmr
