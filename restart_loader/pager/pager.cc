#include "restart_loader/pager/pager.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "restart_loader/pager/missing_pages.h"

namespace ppmr {
namespace {

// A fault also brings its neighbours: programs touch memory in order more often than not, and one
// read of the images costs as much as copying some ten pages.
constexpr uint64_t kFaultWindowBytes = 64 << 10;
constexpr size_t kAnswerers = 4;
constexpr uint64_t kBatchBytes = 1 << 20;
// The longest copy under the lock, which a fault waits for.
constexpr uint64_t kCopyBytesMax = 256 << 10;
// While a task changes its memory, the kernel refuses copies. It accepts them again when the pager
// has read the event of the change.
constexpr int kRetryMs = 1;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

class Buffer {
 public:
  explicit Buffer(size_t bytes)
      : memory_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes))) {
    if (!memory_) throw std::bad_alloc();
  }
  std::byte* data() const { return memory_.get(); }

 private:
  std::unique_ptr<std::byte, Free> memory_;
};

struct Task {
  pid_t pid = 0;  // as the task sees itself; 0: a fork that the kernel has reported
  UniqueFd uffd;
  std::shared_ptr<const PageFiles> pages;
  MissingPages missing;
  size_t unanswered = 0;       // faults
  uint64_t cursor = 0;         // where the filling thread goes on
  uint64_t rounds_cursor = 0;  // the same, among pages that are not in the memory file
  bool has_ended = false;
};
using TaskPointer = std::shared_ptr<Task>;

struct Fault {
  TaskPointer task;
  uint64_t address = 0;
};

// Of the bytes in the file.
uint64_t length_of(const std::vector<PageRange>& batch) {
  return batch.back().offset + batch.back().bytes() - batch.front().offset;
}

bool has_arrived(const Task& task, const std::vector<PageRange>& batch) {
  return task.pages->has_arrived(batch.front().offset, length_of(batch));
}

enum class Copied {
  kDone,
  kTryAgain,  // the task changes its memory: its event comes first
};

class Pager {
 public:
  Pager(PageImages images, PagerOptions options)
      : images_(std::move(images)), options_(std::move(options)) {}
  ~Pager() { stop(); }

  Status open();
  Result<PagerCounters> serve();
  // Ends the threads.
  void stop();

 private:
  void prepare_images();
  void start_borrowing();
  Status watch(int fd) const;
  Status accept_criu();
  Status receive_from_criu();
  Status add_task(pid_t pid);
  Status serve_once();
  TaskPointer task_of(int uffd);
  void serve_events(const TaskPointer& task);
  void note_event(const TaskPointer& task, const uffd_msg& event);
  bool end_finished_tasks();

  void answer_faults();
  Result<Copied> answer_fault(Task& task, uint64_t address, std::byte* window);

  void await_memory();
  void fill();
  TaskPointer next_task_locked();
  void next_of_rounds_locked(Task& task, std::vector<PageRange>& batch) const;
  Status fill_batch(const TaskPointer& task, const std::vector<PageRange>& batch);

  Result<Copied> copy_locked(Task& task, const PageRange& to, const std::byte* from);
  Result<Copied> copy_zero_locked(const Task& task, uint64_t address);
  void wake_locked(const Task& task, uint64_t address) const;
  void fail(const Error& error);
  void wake_serving() const;

  PageImages images_;
  const PagerOptions options_;
  UniqueFd listener_;
  UniqueFd criu_;
  UniqueFd epoll_;
  UniqueFd wake_;  // eventfd: another thread has completed a task, or failed

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<TaskPointer>
      tasks_;                 // guarded by mutex_, as are the tasks; the serving thread changes it
  std::deque<Fault> faults_;  // guarded by mutex_
  bool restored_ = false;     // guarded by mutex_: CRIU has restored all tasks
  bool has_memory_ = false;   // guarded by mutex_: no page is on its way any more
  uint64_t arrivals_ = 0;     // guarded by mutex_: how often pages have arrived
  bool stopping_ = false;     // guarded by mutex_
  std::optional<Error> failure_;  // guarded by mutex_
  PagerCounters counters_;        // guarded by mutex_

  // Last: they use the members above.
  std::thread borrower_;
  std::thread filler_;
  std::vector<std::thread> answerers_;
};

Status Pager::open() {
  const std::string& work = options_.work;
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !wake_) return system_failure("make", "an epoll set");
  prepare_images();
  const std::string path = work + "/" + kPagerSocket;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  // A work directory may have a long path. CRIU uses the relative name, too.
  const UniqueFd directory(::open(work.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return system_failure("open", work);
  const std::string name = fmt::format("/proc/self/fd/{}/{}", directory.get(), kPagerSocket);
  name.copy(address.sun_path, sizeof(address.sun_path) - 1);
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener_) return system_failure("make a socket for", path);
  unlink(path.c_str());
  const mode_t mask = umask(0077);
  const int bound =
      bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  umask(mask);
  if (bound != 0 || listen(listener_.get(), 1) != 0) return system_failure("listen at", path);
  if (Status watched = watch(wake_.get()); !watched) return watched;
  return watch(listener_.get());
}

// Saves memory, and after pre-copy time. The tree can run without.
void Pager::prepare_images() {
  if (options_.shared_images.empty() || !images_.files()) return;
  start_borrowing();  // to read no bytes through the mount that are in memory
  const Status prepared = images_.prepare_images(options_.shared_images);
  if (!prepared) {
    fmt::print(
        "pages are not shared between the processes, and those that rounds of pre-copy have "
        "sent are restored before the processes run: {}\n",
        prepared.error().message);
  }
}

void Pager::start_borrowing() {
  if (!borrower_.joinable()) borrower_ = std::thread([this] { await_memory(); });
}

Status Pager::watch(int fd) const {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return system_failure("watch", "a descriptor");
  }
  return {};
}

Result<PagerCounters> Pager::serve() {
  start_borrowing();
  filler_ = std::thread([this] { fill(); });
  for (size_t i = 0; i < kAnswerers; ++i) answerers_.emplace_back([this] { answer_faults(); });
  for (;;) {
    if (Status served = serve_once(); !served) return failure(served.error());
    if (end_finished_tasks()) break;
  }
  stop();
  return counters_;
}

TaskPointer Pager::task_of(int uffd) {
  std::lock_guard lock(mutex_);
  for (const TaskPointer& task : tasks_) {
    if (task->uffd.get() == uffd) return task;
  }
  return nullptr;
}

Status Pager::serve_once() {
  {
    std::lock_guard lock(mutex_);
    if (failure_) return failure(*failure_);
  }
  std::array<epoll_event, 64> events{};
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
  if (count < 0 && errno != EINTR) return system_failure("wait for", "page faults");
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<size_t>(i)].data.fd;
    Status done;
    if (fd == listener_.get()) {
      done = accept_criu();
    } else if (fd == criu_.get()) {
      done = receive_from_criu();
    } else if (fd == wake_.get()) {
      uint64_t ignored = 0;
      (void)!read(fd, &ignored, sizeof(ignored));
    } else if (const TaskPointer task = task_of(fd)) {
      serve_events(task);
    }
    if (!done) return done;
  }
  return {};
}

Status Pager::accept_criu() {
  criu_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!criu_) return system_failure("accept", "the connection of criu restore");
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  return watch(criu_.get());
}

Status Pager::receive_from_criu() {
  int32_t pid = 0;
  const ssize_t n = recv(criu_.get(), &pid, sizeof(pid), MSG_WAITALL);
  if (n != sizeof(pid)) {
    return failure(ECONNRESET, "criu restore ended before all processes were restored");
  }
  if (static_cast<uint32_t>(pid) != kRestoreFinished) return pid < 0 ? Status{} : add_task(pid);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, criu_.get(), nullptr);
  images_.criu_has_ended();
  std::lock_guard lock(mutex_);
  restored_ = true;
  changed_.notify_all();
  return {};
}

Status Pager::add_task(pid_t pid) {
  char byte = 0;
  iovec data{&byte, sizeof(byte)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t n = recvmsg(criu_.get(), &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return failure(EPROTO, fmt::format("criu restore sent no userfaultfd of process {}", pid));
  }
  auto task = std::make_shared<Task>();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  task->pid = pid;
  task->uffd = UniqueFd(fd);
  auto images = images_.of(pid);
  if (!images) return failure(images.error());
  task->pages = std::move(images->pages);
  task->missing = MissingPages(images->ranges);
  // Events are read until there are none.
  fcntl(fd, F_SETFL, O_NONBLOCK);
  if (Status watched = watch(fd); !watched) return watched;
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  return {};
}

void Pager::serve_events(const TaskPointer& task) {
  std::array<uffd_msg, 16> events;
  for (;;) {
    std::lock_guard lock(mutex_);
    if (task->has_ended) return;
    const ssize_t n = read(task->uffd.get(), events.data(), sizeof(events));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      task->has_ended = true;
      return;
    }
    for (const uffd_msg& event :
         std::span(events).first(static_cast<size_t>(n) / sizeof(uffd_msg))) {
      note_event(task, event);
    }
  }
}

// With the lock held.
void Pager::note_event(const TaskPointer& task, const uffd_msg& event) {
  switch (event.event) {
    case UFFD_EVENT_PAGEFAULT:
      ++counters_.faults;
      ++task->unanswered;
      faults_.push_back({task, event.arg.pagefault.address & ~(kPageBytes - 1)});
      changed_.notify_all();
      break;
    case UFFD_EVENT_FORK: {
      auto child = std::make_shared<Task>();
      child->uffd = UniqueFd(static_cast<int>(event.arg.fork.ufd));
      child->pages = task->pages;
      child->missing = task->missing;
      child->rounds_cursor = task->rounds_cursor;
      fcntl(child->uffd.get(), F_SETFL, O_NONBLOCK);
      if (Status watched = watch(child->uffd.get()); !watched) failure_ = watched.error();
      tasks_.push_back(std::move(child));
      changed_.notify_all();
      break;
    }
    case UFFD_EVENT_REMAP:
      task->missing.move(event.arg.remap.from, event.arg.remap.to, event.arg.remap.len);
      break;
    case UFFD_EVENT_REMOVE:
    case UFFD_EVENT_UNMAP:
      task->missing.remove(event.arg.remove.start, event.arg.remove.end);
      break;
    default:
      break;
  }
}

// Several threads: one that waits for bytes which have not arrived must not delay the others.
void Pager::answer_faults() {
  const Buffer window(kFaultWindowBytes);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !faults_.empty(); });
    if (stopping_) return;
    const Fault fault = faults_.front();
    faults_.pop_front();
    lock.unlock();
    const auto copied = answer_fault(*fault.task, fault.address, window.data());
    if (!copied) return fail(copied.error());
    if (*copied == Copied::kTryAgain) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kRetryMs));
    }
    lock.lock();
    if (*copied == Copied::kTryAgain) {
      faults_.push_back(fault);
    } else if (--fault.task->unanswered == 0 && fault.task->missing.empty()) {
      wake_serving();
    }
  }
}

Result<Copied> Pager::answer_fault(Task& task, uint64_t address, std::byte* window) {
  std::optional<PageRange> range;
  {
    std::lock_guard lock(mutex_);
    if (task.has_ended) return Copied::kDone;
    if (!task.missing.first_in(address, address + kPageBytes)) {
      return copy_zero_locked(task, address);
    }
    // The page first: its neighbours may be missing only behind a gap.
    const uint64_t window_end = (address & ~(kFaultWindowBytes - 1)) + kFaultWindowBytes;
    range = task.missing.first_in(address, window_end);
    task.cursor = range->end;
  }
  const auto bytes = task.pages->read(range->offset, range->bytes(), window);
  if (!bytes) return failure(bytes.error());
  std::lock_guard lock(mutex_);
  const auto still = task.missing.first_in(range->start, range->end);
  if (!still || still->start != range->start || still->offset != range->offset) {
    return Copied::kTryAgain;  // it has changed meanwhile
  }
  return copy_locked(task, {range->start, std::min(range->end, still->end), range->offset}, *bytes);
}

void Pager::wake_locked(const Task& task, uint64_t address) const {
  uffdio_range range{.start = address, .len = kPageBytes};
  ioctl(task.uffd.get(), UFFDIO_WAKE, &range);
}

// A page that the images lack was never written by the task.
Result<Copied> Pager::copy_zero_locked(const Task& task, uint64_t address) {
  uffdio_zeropage zero{.range = {.start = address, .len = kPageBytes}, .mode = 0, .zeropage = 0};
  if (ioctl(task.uffd.get(), UFFDIO_ZEROPAGE, &zero) == 0) {
    ++counters_.zero_pages;
    return Copied::kDone;
  }
  switch (errno) {
    case EAGAIN:
      return Copied::kTryAgain;
    case EEXIST:  // it has arrived since
      wake_locked(task, address);
      return Copied::kDone;
    case ENOENT:  // unmapped
    case ESRCH:   // ended
      return Copied::kDone;
    default:
      return system_failure("map a zero page in process", std::to_string(task.pid));
  }
}

// Removes the pages that it copies from those that are missing.
Result<Copied> Pager::copy_locked(Task& task, const PageRange& to, const std::byte* from) {
  uint64_t at = to.start;
  uint64_t step = to.bytes();
  while (at < to.end && !task.has_ended) {
    const uint64_t length = std::min(step, to.end - at);
    uffdio_copy copy{.dst = at,
                     .src = reinterpret_cast<uint64_t>(from + (at - to.start)),
                     .len = length,
                     .mode = 0,
                     .copy = 0};
    const int result = ioctl(task.uffd.get(), UFFDIO_COPY, &copy);
    const int error = errno;
    if (result == 0 || copy.copy > 0) {
      const uint64_t copied = result == 0 ? length : static_cast<uint64_t>(copy.copy);
      task.missing.remove(at, at + copied);
      counters_.pages += copied / kPageBytes;
      at += copied;
      continue;
    }
    switch (error) {
      case EAGAIN:
        return Copied::kTryAgain;
      case ESRCH:
        task.has_ended = true;
        break;
      case ENOENT:
        // Not registered, or more than one mapping: finds the border by halving.
        if (length > kPageBytes) {
          step = length / kPageBytes / 2 * kPageBytes;
          continue;
        }
        [[fallthrough]];
      case EEXIST:
        wake_locked(task, at);
        task.missing.remove(at, at + kPageBytes);
        at += kPageBytes;
        step = to.bytes();
        break;
      default:
        errno = error;
        return system_failure("copy pages into process", std::to_string(task.pid));
    }
  }
  return Copied::kDone;
}

// Returns whether all pages of all tasks are in place.
bool Pager::end_finished_tasks() {
  std::lock_guard lock(mutex_);
  std::erase_if(tasks_, [this](const TaskPointer& task) {
    const bool complete = restored_ && task->missing.empty() && task->unanswered == 0;
    if (!complete && !task->has_ended) return false;
    // The filling thread may still refer to the task.
    task->has_ended = true;
    task->uffd.reset();
    return true;
  });
  // The end of the pager is the end of the checkpoint, which the source has not sealed yet.
  return restored_ && tasks_.empty() && (has_memory_ || !options_.fills_early);
}

void Pager::await_memory() {
  if (images_.files()) {
    const auto is_cancelled = [this] {
      std::lock_guard lock(mutex_);
      return stopping_;
    };
    const auto arrived = [this] {
      std::lock_guard lock(mutex_);
      ++arrivals_;
      changed_.notify_all();
    };
    const Status complete = images_.files()->borrow({options_.fills_early, is_cancelled, arrived});
    if (!complete && complete.error().errno_value == ECANCELED) return;
    if (!complete) return fail(complete.error());
    options_.completed();
  }
  std::lock_guard lock(mutex_);
  has_memory_ = true;
  ++arrivals_;
  changed_.notify_all();
  wake_serving();
}

void Pager::fill() {
  std::vector<PageRange> batch;
  size_t misses = 0;  // tasks in a row whose pages have not arrived
  uint64_t arrivals = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const bool may_fill = restored_ && (has_memory_ || options_.fills_early);
    const TaskPointer task = may_fill ? next_task_locked() : nullptr;
    if (!task) {
      changed_.wait(lock);
      continue;
    }
    if (misses == 0) arrivals = arrivals_;
    task->missing.next_batch(task->cursor, kBatchBytes, batch);
    if (!has_memory_ && !has_arrived(*task, batch)) next_of_rounds_locked(*task, batch);
    if (batch.empty()) {
      // The source sends the memory in the order of the addresses.
      if (std::exchange(task->cursor, 0) == 0 && ++misses >= tasks_.size()) {
        changed_.wait(lock, [&] { return stopping_ || arrivals_ != arrivals; });
        misses = 0;
      }
      continue;
    }
    misses = 0;
    lock.unlock();
    if (const auto filled = fill_batch(task, batch); !filled) return fail(filled.error());
    lock.lock();
    const bool complete = task->missing.empty() || task->has_ended;
    if (complete) wake_serving();
  }
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

// Pages of rounds have arrived, while those of the memory file may still be on their way.
void Pager::next_of_rounds_locked(Task& task, std::vector<PageRange>& batch) const {
  task.missing.next_behind(task.rounds_cursor, PageFiles::kFileSpanBytes, kBatchBytes, batch);
  if (!batch.empty() && !has_arrived(task, batch)) batch.clear();
  if (!batch.empty()) task.rounds_cursor = batch.back().end;
}

Status Pager::fill_batch(const TaskPointer& task, const std::vector<PageRange>& batch) {
  static thread_local Buffer buffer(kBatchBytes);
  const uint64_t first = batch.front().offset;
  const auto bytes = task->pages->read(first, length_of(batch), buffer.data());
  if (!bytes) return failure(bytes.error());
  for (const PageRange& range : batch) {
    for (uint64_t at = range.start; at < range.end;) {
      std::unique_lock lock(mutex_);
      const auto still = task->missing.first_in(at, std::min(range.end, at + kCopyBytesMax));
      at = still ? still->end : std::min(range.end, at + kCopyBytesMax);
      // The task may have moved other memory here meanwhile.
      if (!still || still->offset - range.offset != still->start - range.start) continue;
      const auto copied = copy_locked(*task, *still, *bytes + (still->offset - first));
      if (!copied) return failure(copied.error());
      if (task->has_ended) return {};
      // A later batch has what could not be copied now.
      if (*copied == Copied::kTryAgain) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(kRetryMs));
      }
    }
  }
  std::lock_guard lock(mutex_);
  task->cursor = batch.back().end;
  return {};
}

void Pager::fail(const Error& error) {
  std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
  wake_serving();
}

void Pager::wake_serving() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Pager::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (borrower_.joinable()) borrower_.join();
  if (filler_.joinable()) filler_.join();
  for (std::thread& answerer : answerers_) answerer.join();
  answerers_.clear();
}

}  // namespace

Result<PagerCounters> serve_pages(const PagerOptions& options) {
  auto images = PageImages::open(options.images, options.memory);
  if (!images) return failure(images.error());
  auto pager = std::make_unique<Pager>(std::move(*images), options);
  if (Status opened = pager->open(); !opened) return failure(opened.error());
  options.listening();
  auto served = pager->serve();
  if (!served) {
    pager->stop();
    // The tasks would read zeros if the userfaultfds were closed before the guard has killed them,
    // which it does when this process ends. Reachable, for leak checkers.
    static auto* const kept = new std::vector<std::unique_ptr<Pager>>;
    kept->push_back(std::move(pager));
  }
  return served;
}

}  // namespace ppmr
