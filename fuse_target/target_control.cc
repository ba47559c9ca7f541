// Answers the requests on the control socket of a target mount (request::ToTarget).
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.h"
#include "base/json_text.h"
#include "daemon/control/control_socket.h"
#include "daemon/control/requests.h"
#include "fuse_target/target_mount.h"
#include "rdma_stream/verbs/verbs_target.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTimeout{120'000};
constexpr milliseconds kTimeoutMax = std::chrono::hours(24);

milliseconds limited(std::optional<milliseconds> timeout) {
  return std::clamp(timeout.value_or(kTimeout), milliseconds(0), kTimeoutMax);
}

int64_t ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start).count();
}

nlohmann::json describe(const CheckpointReport& report) {
  return {{"name", report.name},
          {"state", to_string(report.state)},
          {"bytes", report.bytes},
          {"files", report.files},
          {"age_ms", report.age.count()},
          {"peer", report.source_name},
          {"owner", report.owner},
          {"error", report.error.empty() ? report.seal_error : report.error}};
}

// Adds the state of the kept copy; for a target with --keep-dir.
void add_kept(nlohmann::json& described, const CheckpointReport& report) {
  described["kept"] = report.is_passing ? "passing" : to_string(report.keep);
  described["keep_error"] = report.keep_error;
}

nlohmann::json describe(const KeepReport& report, const std::string& directory) {
  auto unreadable = nlohmann::json::array();
  for (const KeepReport::Unreadable& file : report.unreadable) {
    unreadable.push_back({{"file", file.file}, {"name", file.name}, {"reason", file.reason}});
  }
  const int64_t now_ns = realtime_ns();
  const int64_t newest_ns = report.newest_sealed_ns == 0 ? now_ns : report.newest_sealed_ns;
  return {{"directory", directory},
          {"checkpoints", report.checkpoints},
          {"bytes", report.bytes},
          {"free_bytes", report.free_bytes},
          {"failures", report.failures},
          {"expired", report.expired},
          {"given_back_bytes", report.given_back_bytes},
          {"newest_age_ms", std::max<int64_t>(0, now_ns - newest_ns) / 1'000'000},
          {"writing", report.writing},
          {"written_bytes", report.written_bytes},
          {"error", report.error},
          {"unreadable_files", report.unreadable.size()},
          {"unreadable", std::move(unreadable)}};
}

nlohmann::json describe(const SessionReport& session) {
  return {{"name", session.source_name},
          {"address", session.peer},
          {"security", session.security},
          {"encryption", session.encryption},
          {"encryption_why", session.encryption_why},
          {"connected", session.connected},
          {"silence_ms", session.silence.count()},
          {"silence_max_ms", session.silence_max.count()},
          {"age_ms", session.age.count()},
          {"bytes", session.received_bytes},
          {"wire_bytes", session.wire_bytes},
          {"queued_chunks", session.queued_chunks},
          {"pulling_chunks", session.pulling_chunks},
          {"pulled_again", session.pulled_again},
          {"transport", to_string(session.transport)},
          {"transport_why", session.transport_why}};
}

nlohmann::json describe(const VerbsCounters& counters, const VerbsTraffic& traffic) {
  return {{"rails", counters.rails},
          {"registered_bytes", counters.registered_bytes},
          {"registered_regions", counters.registered_regions},
          {"connections", traffic.connections.load()},
          {"connections_made", traffic.connected.load()},
          {"reads_posted", traffic.reads_posted.load()},
          {"bytes_read", traffic.bytes_read.load()},
          {"completions_by_poll", traffic.completions_by_poll.load()},
          {"completions_by_event", traffic.completions_by_event.load()},
          {"strange_completions", traffic.strange_completions.load()}};
}

nlohmann::json success(const CheckpointReport& report) {
  return {{"ok", true},
          {"state", to_string(report.state)},
          {"files", report.files},
          {"bytes", report.bytes},
          {"inode", report.inode}};
}

Error failed_error(const CheckpointReport& report) {
  return {EIO, "checkpoint '" + report.name + "' failed: " + report.error};
}

Error missing_error(const std::string& name) {
  return {ENOENT, "no checkpoint '" + name + "' at this target"};
}

Error foreign_error(const CheckpointReport& report, const std::string& owner) {
  return {EPERM, "checkpoint '" + report.name + "' belongs to " + report.owner + ", not to " +
                     owner + ", which wants to use it"};
}

// Returns the first and the last block of the file on the disk that a loan uses.
std::pair<uint64_t, uint64_t> blocks_on_disk(const FileLoan& loan) {
  uint64_t first = UINT64_MAX;
  uint64_t last = 0;
  for (const FileLoan::Piece& piece : loan.pieces) {
    if (piece.place != FileLoan::kOnDisk) continue;
    first = std::min(first, piece.place_offset / DiskBytes::kBlockBytes);
    last = std::max(last, (piece.place_offset + piece.length - 1) / DiskBytes::kBlockBytes);
  }
  return {first, last};
}

}  // namespace

nlohmann::json TargetMount::answer(const nlohmann::json& json, PassedDescriptors& passed) {
  const auto request = read_request<request::ToTarget>(json);
  if (!request) return refusal(request.error());
  return std::visit(
      EachKind{
          [&](const request::Status&) { return status(); },
          [&](const request::Drain& drain) {
            draining_ = drain.on;
            tree_.refuse_claims(drain.on);
            return answer_of({});
          },
          [&](const request::Commit& seal) { return commit(seal); },
          [&](const request::Wait& wait_for) { return wait(wait_for); },
          [&](const request::Remove& unwanted) { return remove(unwanted); },
          [&](const request::Bundle& wanted) { return bundle(wanted, passed.to_send); },
          [&](const request::HoldMemory& memory) {
            return answer_of(hold_memory(memory, std::move(passed.received)));
          },
          [&](const request::HeldMemory& wanted) {
            const auto lent = held_memory_.lend(wanted, passed.to_send);
            return lent ? *lent : refusal(lent.error());
          },
          [&](const request::Promise& promised) { return promise(promised); },
          [&](const request::Lend& wanted) { return lend(wanted, passed.to_send); },
          [&](const request::NoteRefusal& note) { return note_refusal(note); },
          [&](const request::NoteOutcome& note) { return answer_of(restarts_.note(note)); },
          [&](const request::NoteOpen& note) { return answer_of(open_migrations_.note(note)); },
      },
      *request);
}

nlohmann::json TargetMount::status() const {
  const StoreCounters store = memory_->counters();
  const LoanCounters loans = loans_->counters();
  const ReceiverTotals totals = upstream_->totals();
  auto peers = nlohmann::json::array();
  for (const SessionReport& session : upstream_->sessions()) peers.push_back(describe(session));
  auto checkpoints = nlohmann::json::array();
  for (const CheckpointReport& report : tree_.checkpoints()) {
    checkpoints.push_back(describe(report));
    if (keeper_) add_kept(checkpoints.back(), report);
  }
  nlohmann::json status = {{"ok", true},
                           {"role", "target"},
                           {"mountpoint", options_.mountpoint},
                           {"pid", ::getpid()},
                           {"age_ms", ms_since(started_at_)},
                           {"draining", draining_.load()},
                           {"agents", working_agents_.load()},
                           {"bytes", tree_.landed_bytes()},
                           {"parked_readers", parking_.parked()},
                           {"wire_bytes", totals.wire_bytes},
                           {"chunks", totals.chunks},
                           {"pulled_again", totals.pulled_again},
                           {"crc_failures", totals.crc_failures},
                           {"aead_failures", totals.aead_failures},
                           {"restarts", restarts_.counts()},
                           {"open_migrations", open_migrations_.status()},
                           {"stalls", totals.waits_for_space},
                           {"listen", receiver_->address()},
                           {"allow_restart", options_.allow_restart},
                           {"restart_peers", options_.restart_peers},
                           {"audit_file", options_.audit_file},
                           {"confinement", describe(options_.confinement)},
                           {"store",
                            {{"limit_bytes", store.limit_bytes},
                             {"free_bytes", tree_.space().free_bytes},
                             {"used_bytes", store.used_bytes},
                             {"name_bytes", store.charged_bytes},
                             {"ready_bytes", store.ready_bytes},
                             {"reserve_bytes", store.reserve_bytes},
                             {"spilled_bytes", spill_ ? spill_->spilled_bytes() : 0},
                             {"loans", loans.loans},
                             {"lent_bytes", loans.bytes}}},
                           {"peers", peers},
                           {"checkpoints", checkpoints}};
  if (keeper_) status["keep"] = describe(keeper_->report(), options_.keep_directory);
  if (VerbsTarget* const verbs = devices_->verbs()) {
    status["rdma"] = describe(verbs->counters(), verbs->traffic());
  }
  return status;
}

// Called when a supervisor has refused to restore a checkpoint.
nlohmann::json TargetMount::note_refusal(const request::NoteRefusal& request) {
  spdlog::warn("refused to restart process {} of {} from checkpoint {}: {}", request.process,
               json_text(request.peer), json_text(request.checkpoint), request.reason);
  return {{"ok", true}};
}

// Requests the seal from the source and waits for the result.
nlohmann::json TargetMount::commit(const request::Commit& request) {
  const std::string& name = request.checkpoint;
  const auto before = tree_.checkpoint(name);
  if (!before) return refusal(missing_error(name));
  if (before->state == StoredState::kSealed) return success(*before);
  if (before->state == StoredState::kFailed) return refusal(failed_error(*before));
  if (auto asked = upstream_->request_seal(before->top); !asked) return refusal(asked.error());
  const milliseconds timeout = limited(request.timeout);
  const auto after = tree_.wait_for(
      name,
      [&](const auto& report) {
        return !report || report->state == StoredState::kSealed ||
               report->state == StoredState::kFailed ||
               report->refused_seals > before->refused_seals;
      },
      timeout);
  if (!after) return refusal(missing_error(name));
  if (after->state == StoredState::kSealed) return success(*after);
  if (after->state == StoredState::kFailed) return refusal(failed_error(*after));
  if (after->refused_seals > before->refused_seals) return refusal(Error{EIO, after->seal_error});
  return refusal(
      Error{ETIMEDOUT, "commit '" + name +
                           "': its source did not seal it in time (is a file still open for "
                           "writing there?)"});
}

// Waits until a checkpoint is complete (CRIU has written its last image), sealed or kept, as the
// request says. The checkpoint need not exist yet. If the request names an owner, the checkpoint
// must belong to that owner.
nlohmann::json TargetMount::wait(const request::Wait& request) {
  const std::string& name = request.checkpoint;
  const std::string& until = request.until;
  if (until == request::Wait::kKept) return wait_until_kept(request);
  if (until != request::Wait::kComplete && until != request::Wait::kSealed) {
    return refusal(Error{EINVAL, "wait until '" + until + "': expected complete, sealed or kept"});
  }
  const milliseconds timeout = limited(request.timeout);
  const std::string& owner = request.owner;
  // Only migrations name an owner. They remove the checkpoint when its process runs, so it is not
  // kept.
  if (!owner.empty()) tree_.mark_passing(name, owner);
  const auto is_foreign = [&](const CheckpointReport& report) {
    return !owner.empty() && report.owner != owner;
  };
  const auto arrived = [&](const CheckpointReport& report) {
    return report.state == StoredState::kSealed ||
           (until == request::Wait::kComplete && report.state == StoredState::kComplete);
  };
  const auto report = tree_.wait_for(
      name,
      [&](const auto& candidate) {
        return candidate && (arrived(*candidate) || is_foreign(*candidate) ||
                             candidate->state == StoredState::kFailed);
      },
      timeout);
  if (!owner.empty()) tree_.mark_passing(name, owner);
  if (report && is_foreign(*report)) return refusal(foreign_error(*report, owner));
  if (report && arrived(*report)) return success(*report);
  if (report && report->state == StoredState::kFailed) return refusal(failed_error(*report));
  auto late = refusal(Error{ETIMEDOUT, "checkpoint '" + name + "' is not " + until + " after " +
                                           std::to_string(timeout.count()) + " ms: it is " +
                                           (report ? to_string(report->state) : "missing")});
  // The count of arrived bytes lets the client distinguish a slow transfer from a stalled one.
  late["bytes"] = report ? report->bytes : tree_.landed_bytes();
  return late;
}

// Only migrations promise memory, so the checkpoint is not kept. If memory is short, gives back the
// memory of kept checkpoints.
nlohmann::json TargetMount::promise(const request::Promise& request) {
  const std::string& name = request.checkpoint;
  tree_.mark_passing(name);
  for (;;) {
    const Status promised = tree_.promise(name, request.bytes);
    const bool is_full = !promised && promised.error().errno_value == ENOSPC;
    if (!is_full || !storage_.make_room()) return answer_of(promised);
  }
}

// Waits until a checkpoint is sealed and kept. The checkpoint need not exist yet.
nlohmann::json TargetMount::wait_until_kept(const request::Wait& request) {
  const std::string& name = request.checkpoint;
  if (!keeper_) {
    return refusal(Error{EOPNOTSUPP, "'" + name +
                                         "' is not kept: this target was started without "
                                         "--keep-dir"});
  }
  tree_.keep_soon(name);
  const milliseconds timeout = limited(request.timeout);
  const auto report = tree_.wait_for(
      name,
      [](const auto& candidate) {
        return candidate && (candidate->keep == KeepState::kKept || candidate->is_passing ||
                             candidate->state == StoredState::kFailed);
      },
      timeout);
  if (report && report->keep == KeepState::kKept) return success(*report);
  if (report && report->state == StoredState::kFailed) return refusal(failed_error(*report));
  if (report && report->is_passing) {
    return refusal(Error{EOPNOTSUPP, "'" + name +
                                         "' is not kept: it belongs to a migration, which removes "
                                         "it"});
  }
  const std::string why = report ? report->keep_error : "it is missing";
  return refusal(Error{ETIMEDOUT, "checkpoint '" + name + "' is not kept after " +
                                      std::to_string(timeout.count()) + " ms" +
                                      (why.empty() ? "" : ": " + why)});
}

// Answers only after the removal of a kept checkpoint is on the disk.
nlohmann::json TargetMount::remove(const request::Remove& request) {
  auto removed = tree_.remove_checkpoint(request.checkpoint, request.owner);
  if (!removed) return refusal(removed.error());
  upstream_->notify_removed(*removed);
  held_memory_.release(request.checkpoint);
  if (!keeper_) return {{"ok", true}};
  const auto done = std::make_shared<std::promise<Status>>();
  auto result = done->get_future();
  keeper_->removed(*removed, [done](const Status& status) { done->set_value(status); });
  return answer_of(result.get());
}

Status TargetMount::hold_memory(const request::HoldMemory& request,
                                std::vector<UniqueFd> received) {
  const auto report = tree_.checkpoint(request.checkpoint);
  if (!report) return failure(missing_error(request.checkpoint));
  std::set<std::string> present;
  for (const CheckpointReport& checkpoint : tree_.checkpoints()) present.insert(checkpoint.name);
  held_memory_.release_others(present);
  if (report->owner != request.owner) return failure(foreign_error(*report, request.owner));
  return held_memory_.hold(request, std::move(received));
}

// Lends the part of a file that begins at `offset`. The answer passes descriptors in this order:
// the memfds and then the spill file (if any), which `place` in `pieces` numbers; the spill file's
// checksums; and the borrower's end of a new loan. README.md of daemon/control has the format.
nlohmann::json TargetMount::lend(const request::Lend& request, std::vector<UniqueFd>& descriptors) {
  auto lent = tree_.lend(request.checkpoint, request.file, request.offset, request.arrived);
  if (!lent) return refusal(lent.error());
  FileLoan& loan = lent->loan;
  loan.use = memory_->begin_use();
  std::vector<UniqueFd> passed;
  auto pieces = nlohmann::json::array();
  for (const FileLoan::Piece& piece : loan.pieces) {
    const size_t place = piece.place == FileLoan::kOnDisk ? loan.regions.size() : piece.place;
    pieces.push_back({piece.offset, piece.length, place, piece.place_offset});
  }
  for (const int region : loan.regions) {
    passed.emplace_back(::fcntl(region, F_DUPFD_CLOEXEC, 0));
    if (!passed.back())
      return refusal(
          Error{errno, std::string("pass the memory of a checkpoint: duplicate a descriptor: ") +
                           std::strerror(errno)});
  }
  nlohmann::json answer = {{"ok", true},
                           {"inode", lent->inode},
                           {"size", loan.size_bytes},
                           {"end", loan.end},
                           {"pieces", std::move(pieces)}};
  if (loan.on_disk) {
    const auto [first, last] = blocks_on_disk(loan);
    auto file = loan.on_disk->open_for_reading();
    if (!file) return refusal(file.error());
    auto checksums = loan.on_disk->copy_checksums(first, last - first + 1);
    if (!checksums) return refusal(checksums.error());
    answer["spill"] = {{"place", passed.size()}, {"first_block", first}};
    passed.push_back(std::move(*file));
    passed.push_back(std::move(*checksums));
  }
  if (const int earlier = request.loan; earlier >= 0) {
    if (auto extended = loans_->extend(earlier, std::move(loan)); !extended) {
      return refusal(extended.error());
    }
    answer["loan"] = earlier;
  } else {
    auto added = loans_->add(std::move(loan));
    if (!added) return refusal(added.error());
    answer["loan"] = added->id;
    passed.push_back(std::move(added->borrowers_end));
  }
  descriptors = std::move(passed);
  return answer;
}

// The answer passes one descriptor, the memfd.
nlohmann::json TargetMount::bundle(const request::Bundle& request,
                                   std::vector<UniqueFd>& descriptors) {
  auto bundled = tree_.bundle(request.checkpoint);
  if (!bundled) return refusal(bundled.error());
  descriptors.push_back(std::move(bundled->memfd));
  return {{"ok", true}, {"inode", bundled->inode}};
}

}  // namespace ppmr
