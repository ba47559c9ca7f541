#include "migration/target/tree_arrival.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/number_file.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"
#include "mount/mount_table.h"
#include "preflight/policy/restart_policy.h"
#include "processes/files/tmpfs_builder.h"
#include "processes/memory/page_index.h"
#include "restart_loader/criu/files_apart.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kSealSlice{250};
constexpr milliseconds kDaemonPatience{2000};
constexpr milliseconds kProgressInterval{500};

}  // namespace

Result<std::string> control_socket_of(const OwnershipRecord& record) {
  auto mount = find_mount(record.mountpoint);
  if (!mount) return failure(mount.error());
  return mount->mount.source;
}

bool is_taken_over(const TreeRecord& tree) { return !tree.protected_as.empty(); }

TreeArrival::TreeArrival(const OwnershipRecord& record, size_t tree, std::string work,
                         ReadRecord read)
    : record_(record), tree_(tree), work_(std::move(work)), read_(std::move(read)) {}

std::string TreeArrival::files_directory() const { return work_ + "/" + kFilledTmpfs; }

Status TreeArrival::begin() {
  if (is_taken_over(tree())) return {};
  if (is_tmpfs_built(files_directory())) return {};
  remove_built_tmpfs(files_directory());
  const auto socket = control_socket_of(record_);
  if (!socket) return failure(socket.error());
  const auto policy = parse_restart_policy(record_.restart_policy);
  if (!policy) return failure(policy.error());
  files_.emplace(ReceivedFilesPlace{.control_socket = *socket,
                                    .mountpoint = record_.mountpoint,
                                    .checkpoint = tree().checkpoint,
                                    .owner = record_.peer,
                                    .directory = files_directory(),
                                    .is_allowed = policy->everything || policy->accepts_root()});
  return {};
}

// Returns the progress of all trees, because a tree waits until the others are copied, too. Returns
// nullopt if the daemon does not answer.
std::optional<TreeArrival::Progress> TreeArrival::progress(const std::string& socket) const {
  std::set<std::string> names;
  for (const TreeRecord& tree : record_.trees) {
    names.insert({tree.checkpoint, memory_checkpoint(record_.plan, tree)});
  }
  Progress made{.arrived_bytes = files_ ? files_->parts() : 0,
                .paused_at_ns = read_number(work_ + kPausedFile)};
  const auto status = call(socket, to_request(request::Status{}), kDaemonPatience);
  if (!status) return std::nullopt;
  for (const json& checkpoint : status->value("checkpoints", json::array())) {
    if (names.contains(checkpoint.value("name", "")))
      made.arrived_bytes += checkpoint.value("bytes", uint64_t{0});
  }
  return made;
}

Result<uint64_t> TreeArrival::await_sealed() const {
  if (is_taken_over(tree())) return 0;
  auto socket = control_socket_of(record_);
  if (!socket) return failure(socket.error());
  Progress made;
  auto last_progress = Clock::now();
  auto looked_at = last_progress;
  for (;;) {
    auto record = read_();
    if (!record) return failure(record.error());
    if (record->state() == MigrationState::kAborted) {
      return failure(ECANCELED, "aborted: " + record->error);
    }
    if (files_) {
      if (Status arrives = files_->failed(); !arrives) return failure(arrives.error());
    }
    const json request = to_request(request::Wait{
        .checkpoint = tree().checkpoint, .owner = record_.peer, .timeout = kSealSlice});
    const auto answer = call(*socket, request, kSealSlice + kDaemonPatience);
    const Status verdict = answer ? accepted(*answer) : failure(answer.error());
    if (verdict) return answer->at("inode").get<uint64_t>();
    if (is_crowded(verdict.error())) {
      std::this_thread::sleep_for(kSealSlice);  // no event announces a free place
    } else if (verdict.error().errno_value != ETIMEDOUT) {
      return failure(verdict.error());
    }
    if (Clock::now() - looked_at >= kProgressInterval) {
      looked_at = Clock::now();
      if (const auto now = progress(*socket); now && *now != made) {
        last_progress = Clock::now();
        made = *now;
      }
    }
    if (Clock::now() - last_progress > milliseconds(record->hold_limit_ms)) {
      return failure(ETIMEDOUT, fmt::format("{}; no progress for {} s (--timeout)",
                                            verdict.error().message, record->hold_limit_ms / 1000));
    }
  }
}

Status TreeArrival::check_owner_of_memory() const {
  if (is_taken_over(tree())) return {};
  const std::string memory = memory_checkpoint(record_.plan, tree());
  if (memory.empty()) return {};
  auto socket = control_socket_of(record_);
  if (!socket) return failure(socket.error());
  const json request = to_request(
      request::Wait{.checkpoint = memory, .owner = record_.peer, .timeout = milliseconds(0)});
  const auto answer = call(*socket, request, kDaemonPatience);
  const Status verdict = answer ? accepted(*answer) : failure(answer.error());
  const bool is_foreign = !verdict && verdict.error().errno_value == EPERM;
  return is_foreign ? verdict : Status{};
}

Status TreeArrival::await_files(const std::function<bool()>& is_over) {
  if (is_taken_over(tree())) return {};
  const auto socket = control_socket_of(record_);
  if (!socket) return failure(socket.error());
  const ReceivedMemoryPlace place{*socket, tree().checkpoint, record_.peer};
  if (!files_) return shared_memory_.fetch(place);
  if (Status finished = files_->finish(is_over); !finished) return finished;
  return shared_memory_.keep(place, files_->take_segments());
}

Status TreeArrival::keep_room_for_memory(const std::string& images) const {
  const auto index = read_page_index(images + "/" + kPageIndexFile);
  if (!index) return failure(index.error());
  const auto socket = control_socket_of(record_);
  if (!socket) return failure(socket.error());
  const json request =
      to_request(request::Promise{memory_checkpoint(record_.plan, tree()), index->memory_bytes});
  const auto answer = call(*socket, request, kDaemonPatience);
  if (!answer) return failure(answer.error());
  return accepted(*answer);
}

void TreeArrival::discard() {
  files_.reset();
  remove_mounts();
}

void TreeArrival::remove_mounts() const { remove_built_tmpfs(files_directory()); }

}  // namespace ppmr
