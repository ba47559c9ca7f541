#include <sys/ioctl.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <string>

#include "restart_loader/pager/refused_copy.h"
#include "restart_loader/pager/serving_pager.h"

namespace ppmr {
namespace {

// The pager answers a fault with the page and its neighbours: programs mostly touch memory in
// order, and one read of the images costs as much as copying about ten pages.
constexpr uint64_t kFaultWindowBytes = 64 << 10;

}  // namespace

// Several threads run this function: a thread that waits for bytes which have not arrived must not
// delay the others.
void Pager::answer_faults() {
  const Buffer scratch(kFaultWindowBytes);
  std::vector<PageRange> batch;
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) { return stopping_ || !faults_.empty(); });
    if (stopping_) return;
    const Fault fault = faults_.front();
    faults_.pop_front();
    lock.unlock();
    const auto copied = answer_fault(*fault.task, fault.address, batch, scratch.data());
    if (!copied) return fail(copied.error());
    if (*copied == Copied::kTryAgain) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kRetryMs));
    }
    lock.lock();
    if (*copied == Copied::kTryAgain) {
      faults_.push_back(fault);
      continue;
    }
    counters_.fault_times.add(std::chrono::steady_clock::now() - fault.read_at);
    assert(fault.task->unanswered > 0 && "a fault was answered twice");
    if (--fault.task->unanswered == 0 && fault.task->missing.empty()) wake_serving();
  }
}

Result<Copied> Pager::answer_fault(Task& task, uint64_t address, std::vector<PageRange>& batch,
                                   std::byte* scratch) {
  {
    MutexLock lock(mutex_);
    if (task.has_ended) return Copied::kDone;
    if (!task.missing.first_in(address, address + kPageBytes)) {
      return copy_zero_locked(task, address);
    }
    // Copies the page first: its neighbours may be missing only behind a gap.
    const uint64_t window_end = (address & ~(kFaultWindowBytes - 1)) + kFaultWindowBytes;
    batch.assign(1, *task.missing.first_in(address, window_end));
    task.cursor = batch.front().end;
  }
  if (Status copied = copy_batch(task, batch, scratch); !copied) return failure(copied.error());
  MutexLock lock(mutex_);
  if (task.has_ended) return Copied::kDone;
  if (task.missing.first_in(address, address + kPageBytes)) return Copied::kTryAgain;
  // The page is already in the task's memory, or the task has discarded it in the meantime. A
  // discarded page reads as zeros.
  return copy_zero_locked(task, address);
}

void Pager::wake_locked(const Task& task, uint64_t address) const {
  uffdio_range range{.start = address, .len = kPageBytes};
  ioctl(task.uffd.get(), UFFDIO_WAKE, &range);
}

// The task has never written to a page that the images lack.
Result<Copied> Pager::copy_zero_locked(const Task& task, uint64_t address) {
  uffdio_zeropage zero{.range = {.start = address, .len = kPageBytes}, .mode = 0, .zeropage = 0};
  if (ioctl(task.uffd.get(), UFFDIO_ZEROPAGE, &zero) == 0) {
    ++counters_.zero_pages;
    return Copied::kDone;
  }
  switch (errno) {
    case EAGAIN:
      return Copied::kTryAgain;
    case EEXIST:  // EEXIST: the page has arrived in the meantime
    case ENOENT:  // ENOENT: the task has moved or unmapped the page, or mapped other memory there
      wake_locked(task, address);
      return Copied::kDone;
    case ESRCH:  // ESRCH: the task has ended
      return Copied::kDone;
    default:
      return system_failure("map a zero page in process", std::to_string(task.pid));
  }
}

// Removes the pages that it copies from the task's missing pages. Holds the lock except during the
// system call. While a copy is under way, no thread reads events (see after_refusal()).
Result<Copied> Pager::copy(Task& task, const PageRange& to, const std::byte* from) {
  assert(!task.reads_events && "pages are copied while the kernel's events are read");
  ++task.copies;
  auto copied = copy_pages(task, to, from);
  assert(task.copies > 0 && "more copies ended than began");
  if (--task.copies == 0) {
    copies_changed_.notify_all();
    if (task.missing.empty() || task.has_ended) wake_serving();
  }
  return copied;
}

Result<Copied> Pager::copy_pages(Task& task, const PageRange& to, const std::byte* from) {
  assert(to.start < to.end && to.start % kPageBytes == 0 && to.end % kPageBytes == 0 &&
         "a copy is not of whole pages");
  uint64_t at = to.start;
  uint64_t step = to.bytes();
  bool is_second_try = false;
  while (at < to.end && !task.has_ended) {
    const uint64_t length = std::min(step, to.end - at);
    uffdio_copy copy{.dst = at,
                     .src = reinterpret_cast<uint64_t>(from + (at - to.start)),
                     .len = length,
                     .mode = 0,
                     .copy = 0};
    mutex_.unlock();
    const int result = ioctl(task.uffd.get(), UFFDIO_COPY, &copy);
    const int error = errno;
    mutex_.lock();
    if (result == 0 || copy.copy > 0) {
      const uint64_t copied = result == 0 ? length : static_cast<uint64_t>(copy.copy);
      task.missing.remove(at, at + copied);
      counters_.pages += copied / kPageBytes;
      at += copied;
      is_second_try = false;
      continue;
    }
    switch (after_refusal(error, length, is_second_try)) {
      case AfterRefusal::kReadEvents:
        return Copied::kTryAgain;
      case AfterRefusal::kTaskEnded:
        task.has_ended = true;
        break;
      case AfterRefusal::kCopyLess:  // finds the border by halving
        step = length / kPageBytes / 2 * kPageBytes;
        break;
      case AfterRefusal::kCopyAgain:
        is_second_try = true;
        break;
      case AfterRefusal::kSkipPage:
        wake_locked(task, at);
        task.missing.remove(at, at + kPageBytes);
        at += kPageBytes;
        step = to.bytes();
        is_second_try = false;
        break;
      case AfterRefusal::kFail:
        return system_failure("copy pages into process", std::to_string(task.pid), error);
    }
  }
  return Copied::kDone;
}

}  // namespace ppmr
