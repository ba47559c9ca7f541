// Answers the requests on the control socket of a source mount (request::ToSource).
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>

#include "base/mapped_memory.h"
#include "daemon/control/control_socket.h"
#include "daemon/control/requests.h"
#include "fuse_source/source_mount.h"
#include "processes/memory/read_messages.h"
#include "processes/memory/remote_memory.h"
#include "rdma_stream/verbs/verbs_source.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// The address space of a process with four-level page tables is smaller than this.
constexpr uint64_t kMemoryMaxBytes = uint64_t{1} << 48;
// The number of slots that the pool must have for each thread that sends the memory of a tree.
constexpr size_t kSlotsPerPass = 8;

int64_t ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

const char* state_name(const SourceCheckpoint& checkpoint, CheckpointState state) {
  if (checkpoint.removed_at_target) return "removed";
  if (state == CheckpointState::kSealed) return "sealed";
  return checkpoint.status() ? "open" : "failed";
}

}  // namespace

nlohmann::json SourceMount::answer(const nlohmann::json& json, PassedDescriptors& passed) {
  const auto request = read_request<request::ToSource>(json);
  if (!request) return refusal(request.error());
  return std::visit(
      EachKind{
          [&](const request::Status&) { return status(); },
          [&](const request::Drain& drain) {
            draining_ = drain.on;
            return answer_of({});
          },
          [&](const request::Commit& sealed) {
            const auto report = commit(sealed.checkpoint);
            if (!report) return refusal(report.error());
            return nlohmann::json{{"ok", true}, {"files", report->files}, {"bytes", report->bytes}};
          },
          [&](const request::Stay&) { return answer_of(stay()); },
          [&](const request::DeferErrors& defer) {
            return answer_of(defer_errors(defer.checkpoint));
          },
          [&](const request::WaitForPeer& wait) {
            return answer_of(wait_for_peer(
                wait.checkpoint, std::clamp(wait.timeout, milliseconds(0), kPatienceMax)));
          },
          [&](const request::AddFiles& add) { return answer_of(add_files(add, passed.received)); },
          [&](const request::SendMemory& send) {
            return answer_of(send_memory(send, std::move(passed.received)));
          },
          [&](const request::NoteOutcome& note) { return answer_of(migrations_.note(note)); },
          [&](const request::NoteOpen& note) { return answer_of(open_migrations_.note(note)); },
          [&](const request::NoteEpoch& note) { return answer_of(protected_.note(note)); },
          [&](const request::NoteProtectionEnd& note) {
            protected_.forget(note);
            return answer_of({});
          },
      },
      *request);
}

Status SourceMount::stay() const {
  if (!options_.idle || options_.idle->stay(std::chrono::steady_clock::now())) return {};
  return failure(ESHUTDOWN, "the daemon was idle and is ending");
}

Status SourceMount::add_files(const request::AddFiles& request,
                              const std::vector<UniqueFd>& received) {
  if (received.size() != 1) {
    return failure(EINVAL, "add files: the request must pass a bundle of the files");
  }
  const auto bundle = ImageBundle::open(received.front());
  if (!bundle) return failure(bundle.error());
  return add_files(request.checkpoint, *bundle);
}

// A page reader fills the slots, because this process has no right to read the memory of other
// processes.
Status SourceMount::send_memory(const request::SendMemory& request,
                                std::vector<UniqueFd> received) {
  FrozenMemory memory{
      .bytes = request.memory_bytes, .first = {}, .reader = {}, .wanted_reader = {}};
  memory.file_offset = request.file_offset;
  if (memory.bytes % kPageSizeBytes != 0 || memory.bytes > kMemoryMaxBytes ||
      memory.file_offset % kPageSizeBytes != 0 || memory.file_offset > kMemoryMaxBytes) {
    return failure(
        EINVAL,
        fmt::format("send {} bytes of memory at {}: not a multiple of the page size, or too large",
                    memory.bytes, memory.file_offset));
  }
  if (received.size() < kPageReaderSocketsMin || received.size() > kPageReaderSocketsMax) {
    return failure(EINVAL, "send memory: the request must pass the sockets of a page reader");
  }
  for (const auto& [offset, bytes] : request.first) memory.first.push_back({offset, bytes});
  const std::optional<milliseconds> patience = request.reader_timeout;
  if (Status lent = lend_pool(received[0], pool_->descriptor()); !lent) return lent;
  const std::string& name = request.checkpoint;
  const SourceNodePointer node = tree_.child(tree_.root(), name);
  const auto give_up = [&] { return stopping_ || (node && !node->checkpoint->status()); };
  RemoteMemory first_pass(std::move(received[0]), pool_->memory(), patience, give_up);
  RemoteMemory wanted(std::move(received[1]), pool_->memory(), patience, give_up);
  const auto reader_of = [](RemoteMemory& remote) {
    return FrozenMemory::Reader{
        .read = [&](uint64_t offset,
                    std::span<std::byte> slot) { return remote.read(offset, slot); },
        .still_fills = [&] { return remote.take_unanswered(); }};
  };
  memory.reader = reader_of(first_pass);
  memory.wanted_reader = reader_of(wanted);
  // Limit the number of passes, because each pass holds a slot while it waits for another one.
  const size_t passes_max = std::max<size_t>(pool_->slot_count() / kSlotsPerPass, 1);
  std::deque<RemoteMemory> further;  // a deque does not move its elements
  for (size_t i = kPageReaderSocketsMin; i < received.size() && i <= passes_max; ++i) {
    further.emplace_back(std::move(received[i]), pool_->memory(), patience, give_up);
    memory.further_readers.push_back(reader_of(further.back()));
  }
  memory.arrives = request.until != request::SendMemory::kUntilRead;
  (void)::prctl(PR_SET_NAME, kMemoryThread);
  return send_memory(name, memory);
}

nlohmann::json SourceMount::status_of(const SourceNode& top) {
  const SourceCheckpoint& checkpoint = *top.checkpoint;
  uint64_t bytes = 0;
  uint64_t files = 0;
  for (auto& node : tree_.nodes_of(checkpoint)) {
    if (node->type != wire::NodeType::kFile) continue;
    ++files;
    bytes += written_bytes(*node);
  }
  nlohmann::json entry = {{"bytes", bytes},
                          {"files", files},
                          {"age_ms", ms_since(checkpoint.begun_at)},
                          {"peer", checkpoint.outlet->counters().peer}};
  {
    MutexLock lock(tree_.mutex());
    entry["name"] = top.name;
    entry["state"] = state_name(checkpoint, checkpoint.state);
  }
  if (auto status = checkpoint.status(); !status && entry["state"] == "failed") {
    entry["error"] = status.error().message;
  }
  return entry;
}

nlohmann::json SourceMount::status() {
  const std::shared_ptr<Outlet> outlet = sessions_->present();
  const OutletCounters sent = outlet->counters();
  const OutletTotals totals = sessions_->totals();
  const PoolCounters pool = pool_->counters();
  nlohmann::json result = {
      {"ok", true},
      {"role", "source"},
      {"mountpoint", options_.mountpoint},
      {"pid", ::getpid()},
      {"age_ms", ms_since(started_at_)},
      {"draining", draining_.load()},
      {"bytes", totals.bytes},
      {"wire_bytes", totals.wire_bytes},
      {"chunks", totals.chunks},
      {"inline_chunks", totals.inline_chunks},
      {"reconnections", totals.reconnections},
      {"migrations", migrations_.counts()},
      {"open_migrations", open_migrations_.status()},
      {"protected", protected_.status()},
      {"confinement", describe(options_.confinement)},
      {"parked_readers", 0},
      {"stalls", pool.waits},
      {"pool",
       {{"slots", pool.slots},
        {"chunk_size_bytes", pool_->chunk_size_bytes()},
        {"free", pool.free},
        {"in_use", pool.in_use},
        {"in_use_max", pool.in_use_max},
        {"high_water_bytes", pool.in_use_max * pool_->chunk_size_bytes()},
        {"waits", pool.waits},
        {"wait_time_us", pool.wait_time_us}}},
  };
  nlohmann::json peer = {{"name", sent.peer_name},
                         {"address", sent.peer},
                         {"security", sent.security},
                         {"encryption", sent.encryption},
                         {"encryption_why", sent.encryption_why},
                         {"connected", sent.connected},
                         {"silence_ms", sent.silence.count()},
                         {"silence_max_ms", sent.silence_max.count()},
                         {"age_ms", ms_since(started_at_)},
                         {"compression", sent.compression},
                         {"bytes", sent.verified_bytes},
                         {"wire_bytes", sent.wire_bytes},
                         {"transport", options_.discard ? "none" : to_string(sent.transport)},
                         {"transport_why", sent.transport_why}};
  if (auto status = outlet->status(); !status) peer["error"] = status.error().message;
  result["peers"] = nlohmann::json::array({peer});

  const SourceDevices* const devices = sessions_->devices();
  if (devices != nullptr && devices->verbs() != nullptr) {
    const VerbsSource::Counters rdma = devices->verbs()->counters();
    result["rdma"] = {{"rails", rdma.rails},
                      {"registered_bytes", rdma.registered_bytes},
                      {"registered_regions", rdma.registered_regions},
                      {"connections_admitted", rdma.admitted},
                      {"connections_refused", rdma.refused}};
  }

  result["checkpoints"] = nlohmann::json::array();
  for (auto& top : tree_.tops()) result["checkpoints"].push_back(status_of(*top));
  return result;
}

}  // namespace ppmr
