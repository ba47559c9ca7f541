#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

#include "restart_loader/pager/serving_pager.h"

namespace ppmr {
namespace {

// The longest copy. A fault waits for at most one copy.
constexpr uint64_t kCopyBytesMax = 256 << 10;
// While memory still arrives, filling can wait: the processor serves faults first.
constexpr std::chrono::milliseconds kQuietAfterFault{30};
constexpr std::chrono::milliseconds kReportInterval{200};

// Returns the sum of the lengths, which is the length in the file.
uint64_t length_of(const std::vector<PageRange>& batch) {
  return batch.back().offset + batch.back().bytes() - batch.front().offset;
}

bool has_arrived(const Task& task, const std::vector<PageRange>& batch) {
  return task.pages->has_arrived(batch.front().offset, length_of(batch));
}

}  // namespace

void Pager::await_memory() {
  if (images_.file()) {
    const auto is_cancelled = [this] {
      MutexLock lock(mutex_);
      return stopping_;
    };
    const auto arrived = [this] {
      MutexLock lock(mutex_);
      ++arrivals_;
      changed_.notify_all();
    };
    const Status complete = images_.file()->borrow({options_.fills_early, is_cancelled, arrived});
    if (!complete && complete.error().errno_value == ECANCELED) return;
    if (!complete) return fail(complete.error());
    options_.completed();
  }
  MutexLock lock(mutex_);
  has_memory_ = true;
  ++arrivals_;
  changed_.notify_all();
  wake_serving();
}

void Pager::fill() {
  const Buffer scratch(kBatchBytes);
  std::vector<PageRange> batch;
  size_t misses = 0;  // number of consecutive tasks whose pages have not arrived
  uint64_t arrivals = 0;
  MutexLock lock(mutex_);
  while (!stopping_) {
    const auto quiet_at = last_fault_ + kQuietAfterFault;
    if (!has_memory_ && restored_ && std::chrono::steady_clock::now() < quiet_at) {
      changed_.wait_until(mutex_, quiet_at);
      continue;
    }
    const bool may_fill = restored_ && (has_memory_ || options_.fills_early);
    const TaskPointer task = may_fill ? next_task_locked() : nullptr;
    if (!task) {
      changed_.wait(mutex_);
      continue;
    }
    if (misses == 0) arrivals = arrivals_;
    task->missing.next_batch(task->cursor, kBatchBytes, batch);
    if (!has_memory_ && !has_arrived(*task, batch)) batch.clear();
    if (batch.empty()) {
      // The source sends the memory in the order of the addresses.
      if (std::exchange(task->cursor, 0) == 0 && ++misses >= tasks_.size()) {
        changed_.wait(mutex_,
                      [&]() PPMR_REQUIRES(mutex_) { return stopping_ || arrivals_ != arrivals; });
        misses = 0;
      }
      continue;
    }
    misses = 0;
    task->cursor = batch.back().end;
    lock.unlock();
    if (const auto filled = copy_batch(*task, batch, scratch.data()); !filled) {
      return fail(filled.error());
    }
    report_missing();
    lock.lock();
  }
}

void Pager::report_missing() {
  if (!options_.filling) return;
  uint64_t missing_bytes = 0;
  {
    MutexLock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (now < next_report_) return;
    next_report_ = now + kReportInterval;
    for (const TaskPointer& task : tasks_) missing_bytes += task->missing.bytes();
  }
  options_.filling(missing_bytes);
}

// The tasks take turns.
TaskPointer Pager::next_task_locked() {
  for (auto task = tasks_.begin(); task != tasks_.end(); ++task) {
    if ((*task)->missing.empty() || (*task)->has_ended) continue;
    TaskPointer found = *task;
    tasks_.splice(tasks_.end(), tasks_, task);
    return found;
  }
  return nullptr;
}

// Copies those pages of the batch that are still missing and have not moved. While the task changes
// its memory, some pages stay missing.
Status Pager::copy_batch(Task& task, const std::vector<PageRange>& batch, std::byte* scratch) {
  assert(!batch.empty() && "there is nothing to copy");
  const uint64_t first = batch.front().offset;
  const auto bytes = task.pages->read(first, length_of(batch), scratch);
  if (!bytes) return failure(bytes.error());
  for (const PageRange& range : batch) {
    for (uint64_t at = range.start; at < range.end;) {
      MutexLock lock(mutex_);
      copies_changed_.wait(mutex_, [&]() PPMR_REQUIRES(mutex_) { return !task.reads_events; });
      if (task.has_ended) return {};
      const auto still = task.missing.first_in(at, std::min(range.end, at + kCopyBytesMax));
      at = still ? still->end : std::min(range.end, at + kCopyBytesMax);
      // The task may have moved other memory to this address in the meantime.
      if (!still || still->offset - range.offset != still->start - range.start) continue;
      const auto copied = copy(task, *still, *bytes + (still->offset - first));
      if (!copied) return failure(copied.error());
      if (*copied == Copied::kTryAgain) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(kRetryMs));
      }
    }
  }
  return {};
}

}  // namespace ppmr
