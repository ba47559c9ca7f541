// The pager's tasks and threads. Other code includes only pager.h.
//
//   serving thread   pager.cc         CRIU's socket, the kernel's events
//   answerers        answer_faults.cc faults
//   fillers          fill_pages.cc    all other pages
//   borrower         fill_pages.cc    takes over the bytes that have arrived
#pragma once

#include <linux/userfaultfd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "restart_loader/pager/missing_pages.h"
#include "restart_loader/pager/pager.h"

namespace ppmr {

// While a task changes its memory, the kernel refuses copies. It accepts them again when the pager
// has read the event of the change.
constexpr int kRetryMs = 1;
// The most bytes that a filling thread reads at once.
constexpr uint64_t kBatchBytes = 1 << 20;

class Buffer {
 public:
  explicit Buffer(size_t bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes))) {
    if (!memory_) throw std::bad_alloc();
  }
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

struct Task {
  pid_t pid = 0;  // in the task's own pid namespace; 0: a fork that the kernel has reported
  UniqueFd uffd;
  std::shared_ptr<const PageFile> pages;
  MissingPages missing;
  size_t unanswered = 0;  // number of faults without an answer
  uint64_t cursor = 0;    // the address at which the fill continues
  // Threads copy pages without a lock, but not while the serving thread reads the kernel's events.
  // Otherwise a thread could copy a page to an address that is unmapped or moved.
  size_t copies = 0;  // number of copies under way
  bool reads_events = false;
  bool has_ended = false;
};
using TaskPointer = std::shared_ptr<Task>;

struct Fault {
  TaskPointer task;
  uint64_t address = 0;
  std::chrono::steady_clock::time_point read_at;
};

enum class Copied {
  kDone,
  kTryAgain,  // the task is changing its memory: the pager must read that event first
};

class Pager {
 public:
  // `needs_changes`: CRIU must restore from changed images, not from those of the checkpoint.
  Pager(PageImages images, PagerOptions options, bool needs_changes)
      : images_(std::move(images)), options_(std::move(options)), needs_changes_(needs_changes) {}
  ~Pager() { stop(); }

  Status open();
  Result<PagerCounters> serve();
  // Ends the threads.
  void stop();

 private:
  Status prepare_images();
  void start_borrowing();
  std::thread start_thread(void (Pager::*work)());
  Status watch(int fd) const;
  Status accept_criu();
  Status receive_from_criu();
  Status add_task(pid_t pid);
  Status serve_once();
  TaskPointer task_of(int uffd);
  void serve_events(const TaskPointer& task);
  void note_event(const TaskPointer& task, const uffd_msg& event) PPMR_REQUIRES(mutex_);
  bool end_finished_tasks();

  void answer_faults();
  Result<Copied> answer_fault(Task& task, uint64_t address, std::vector<PageRange>& batch,
                              std::byte* scratch);

  void await_memory();
  void fill();
  void report_missing();
  TaskPointer next_task_locked() PPMR_REQUIRES(mutex_);
  Status copy_batch(Task& task, const std::vector<PageRange>& batch, std::byte* scratch);

  Result<Copied> copy(Task& task, const PageRange& to, const std::byte* from) PPMR_REQUIRES(mutex_);
  Result<Copied> copy_pages(Task& task, const PageRange& to, const std::byte* from)
      PPMR_REQUIRES(mutex_);
  Result<Copied> copy_zero_locked(const Task& task, uint64_t address) PPMR_REQUIRES(mutex_);
  void wake_locked(const Task& task, uint64_t address) const PPMR_REQUIRES(mutex_);
  void fail(const Error& error);
  void wake_serving() const;

  PageImages images_;
  const PagerOptions options_;
  const bool needs_changes_;
  UniqueFd listener_;
  UniqueFd criu_;
  UniqueFd epoll_;
  UniqueFd wake_;  // eventfd: another thread has completed a task, or failed

  Mutex mutex_;
  CondVar changed_;
  CondVar copies_changed_;  // copies or reads_events of a task
  // mutex_ guards the tasks, too. The serving thread adds and removes them.
  std::list<TaskPointer> tasks_ PPMR_GUARDED_BY(mutex_);
  std::deque<Fault> faults_ PPMR_GUARDED_BY(mutex_);
  bool restored_ PPMR_GUARDED_BY(mutex_) = false;    // CRIU has restored all tasks
  bool has_memory_ PPMR_GUARDED_BY(mutex_) = false;  // no page is on its way any more
  uint64_t arrivals_ PPMR_GUARDED_BY(mutex_) = 0;    // how often pages have arrived
  std::chrono::steady_clock::time_point last_fault_ PPMR_GUARDED_BY(mutex_){};  // when it was read
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;
  std::optional<Error> failure_ PPMR_GUARDED_BY(mutex_);
  PagerCounters counters_ PPMR_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point next_report_ PPMR_GUARDED_BY(mutex_){};

  // The last members, because the threads use all others.
  std::thread borrower_;
  std::vector<std::thread> fillers_;
  std::vector<std::thread> answerers_;
};

}  // namespace ppmr
