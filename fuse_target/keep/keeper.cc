#include "fuse_target/keep/keeper.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/without_exceptions.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kTick{1'000};
constexpr int kNice = 15;  // streams and readers come first

// Above this part of the memory limit, kept checkpoints give their memory back.
bool is_scarce(const StoreCounters& counters) {
  return counters.used_bytes + counters.charged_bytes > counters.limit_bytes / 8 * 7;
}

}  // namespace

Keeper::Keeper(KeptFiles& files, LockedKeepKeys keys, KeeperOptions options, ImageTree& tree,
               StoreMemory& memory)
    : files_(files),
      keys_(std::move(keys)),
      options_(std::move(options)),
      tree_(tree),
      memory_(memory) {}

Keeper::~Keeper() { stop(); }

void Keeper::start() {
  writer_ = std::thread([this] { run(); });
  remover_ = std::thread([this] { run_removals(); });
}

void Keeper::stop() {
  stopping_ = true;
  tree_.stop_waiting();
  if (writer_.joinable()) writer_.join();
  {
    MutexLock lock(mutex_);
    removals_end_ = true;
  }
  removals_changed_.notify_all();
  if (remover_.joinable()) remover_.join();
}

std::string Keeper::path_of(int32_t number, bool complete) const {
  return options_.directory + "/" + kept_file_name(number, complete);
}

void Keeper::run() {
  // This changes the priority of this thread only: in Linux each thread has its own priority.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  while (!stopping_) {
    const Status done = without_exceptions([&]() -> Status {
      const ImageTree::KeeperWork work = tree_.next_to_keep(kTick);
      if (work.stopped) {
        stopping_ = true;
        return {};
      }
      for (const NodeKey& top : work.removed) removed(top, nullptr);
      if (work.to_keep) keep(*work.to_keep);
      note_lost_files();
      apply_retention();
      relieve_memory();
      return {};
    });
    if (!done)
      spdlog::error("keep checkpoints in {}: {}", options_.directory, done.error().message);
  }
}

// ---- Removal -----------------------------------------------------------------------------------

void Keeper::removed(NodeKey top, Removed done) {
  bool has_ended = false;
  bool is_known = false;
  {
    MutexLock lock(mutex_);
    attempts_.erase(top);
    const auto found = entries_.find(top);
    is_known = found != entries_.end();
    if (is_known) {
      Entry& entry = found->second;
      if (done) entry.removed.push_back(std::move(done));
      if (std::exchange(entry.is_removed, true)) return;
      // An entry without a file is being written: the writing thread notices the removal, and
      // removes the file.
      if (entry.file) removals_.push_back(top);
      has_ended = removals_end_;
    }
  }
  if (!is_known && done) done(Status());
  removals_changed_.notify_all();
  if (has_ended) run_removals();  // the thread for removals has ended
}

Status Keeper::remove_file(int32_t number) {
  const auto directory = files_.remove_kept(number);
  if (!directory) return failure(directory.error());
  if (::fsync(directory->get()) != 0) return system_failure("sync", options_.directory);
  return {};
}

void Keeper::run_removals() {
  for (;;) {
    NodeKey top;
    int32_t number = 0;
    {
      MutexLock lock(mutex_);
      removals_changed_.wait(
          mutex_, [&]() PPMR_REQUIRES(mutex_) { return removals_end_ || !removals_.empty(); });
      if (removals_.empty()) return;
      top = removals_.back();
      removals_.pop_back();
      number = entries_[top].number;
    }
    const Status done = remove_file(number);
    Entry entry;  // its destructor closes the file and frees the disk space, which can take a while
    {
      MutexLock lock(mutex_);
      entry = std::move(entries_[top]);
      entries_.erase(top);
      if (!done) {
        ++report_.failures;
        report_.error = done.error().message;
      }
    }
    if (!done) {
      spdlog::error("the removed checkpoint '{}' will be back after a restart of the target: {}",
                    entry.name, done.error().message);
    }
    for (const Removed& waiting : entry.removed) waiting(done);
  }
}

// ---- Periodic work -----------------------------------------------------------------------------

// If another program has removed the file of a kept checkpoint, the keeper writes the checkpoint
// again: from memory, or from the removed file, which is still open.
void Keeper::note_lost_files() {
  std::vector<NodeKey> lost;
  {
    MutexLock lock(mutex_);
    for (const auto& [top, entry] : entries_) {
      if (entry.file && !entry.is_removed && !entry.file->is_linked()) lost.push_back(top);
    }
  }
  for (const NodeKey& top : lost) {
    std::string path;
    {
      MutexLock lock(mutex_);
      const auto found = entries_.find(top);
      if (found == entries_.end() || found->second.is_removed) continue;
      path = path_of(found->second.number, true);
      entries_.erase(found);
      ++report_.failures;
      report_.error = path + " has disappeared";
    }
    spdlog::error("{} has disappeared: the checkpoint is written again", path);
    (void)tree_.set_keep(top, KeepState::kNo, path + " has disappeared");
  }
}

void Keeper::apply_retention() {
  if (!options_.retention.any()) return;
  std::vector<NodeKey> tops;
  std::vector<RetentionCandidate> candidates;
  {
    MutexLock lock(mutex_);
    for (const auto& [top, entry] : entries_) {
      if (!entry.file || entry.is_removed) continue;
      tops.push_back(top);
      candidates.push_back({entry.name, entry.sealed_ns, entry.file->size_bytes(), false});
    }
  }
  for (size_t i = 0; i < tops.size(); ++i) candidates[i].in_use = tree_.is_in_use(tops[i]);
  for (const size_t i : choose_expired(candidates, options_.retention, realtime_ns())) {
    if (!tree_.remove_kept(tops[i])) continue;  // a reader has opened it meanwhile
    spdlog::info(
        "removed the kept checkpoint '{}': a limit was reached (--keep-count, --keep-age, "
        "--keep-size)",
        candidates[i].name);
    {
      MutexLock lock(mutex_);
      ++report_.expired;
    }
    removed(tops[i], nullptr);
  }
}

void Keeper::relieve_memory() {
  while (!stopping_ && is_scarce(memory_.counters()) && give_back_oldest()) {
  }
}

bool Keeper::give_back_oldest() {
  std::vector<InMemory> parts;
  {
    MutexLock lock(mutex_);
    Entry* oldest = nullptr;
    for (auto& [top, entry] : entries_) {
      if (entry.in_memory.empty()) continue;
      if (oldest == nullptr || entry.sealed_ns < oldest->sealed_ns) oldest = &entry;
    }
    if (oldest == nullptr) return false;
    parts.swap(oldest->in_memory);
    report_.given_back_bytes += std::exchange(oldest->memory_bytes, 0);
  }
  for (InMemory& part : parts) {
    if (const auto file = part.file.lock()) (void)file->read_from(std::move(part.kept)).get();
  }
  return true;
}

uint64_t Keeper::bytes_to_give_back() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [top, entry] : entries_) bytes += entry.memory_bytes;
  return bytes;
}

KeepReport Keeper::report() const {
  MutexLock lock(mutex_);
  KeepReport report = report_;
  for (const auto& [top, entry] : entries_) {
    if (!entry.file || entry.is_removed) continue;
    ++report.checkpoints;
    report.bytes += entry.file->size_bytes();
    report.newest_sealed_ns = std::max(report.newest_sealed_ns, entry.sealed_ns);
  }
  return report;
}

}  // namespace ppmr
