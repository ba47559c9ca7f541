#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <span>

#include "base/message_socket.h"
#include "base/without_exceptions.h"
#include "processes/memory/data_threads.h"
#include "restart_loader/images/open_files.h"
#include "restart_loader/pager/serving_pager.h"

namespace ppmr {
namespace {

constexpr size_t kAnswerers = 4;

}  // namespace

Status Pager::open() {
  const std::string& work = options_.work;
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !wake_) return system_failure("serve page faults: create", "an epoll set");
  if (Status prepared = prepare_images(); !prepared) return prepared;
  const std::string path = work + "/" + kPagerSocket;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  // Binds to a relative name, because the path of the work directory may be too long for a socket's
  // address. CRIU uses the relative name, too.
  const UniqueFd directory(::open(work.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return system_failure("open", work);
  const std::string name = fmt::format("/proc/self/fd/{}/{}", directory.get(), kPagerSocket);
  name.copy(address.sun_path, sizeof(address.sun_path) - 1);
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener_) return system_failure("create the socket", path);
  unlink(path.c_str());
  const mode_t mask = umask(0077);
  const int bound =
      bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  umask(mask);
  if (bound != 0 || listen(listener_.get(), 1) != 0) return system_failure("listen at", path);
  if (Status watched = watch(wake_.get()); !watched) return watched;
  return watch(listener_.get());
}

// Most images made here only save memory, and the tree can run without them. Without the images of
// change_images(), CRIU would take locks that it must leave out, or refuse files whose sizes
// differ.
Status Pager::prepare_images() {
  if (options_.shared_images.empty()) return {};
  // Lets prepare_images() read borrowed bytes, not through the mount.
  if (images_.file()) start_borrowing();
  const Status prepared = images_.prepare_images(options_.shared_images);
  if (prepared) return {};
  if (needs_changes_) {
    return failure(prepared.error().errno_value,
                   "restore from changed images: " + prepared.error().message);
  }
  fmt::print("pages are not shared between the processes: {}\n", prepared.error().message);
  return {};
}

void Pager::start_borrowing() {
  if (!borrower_.joinable()) borrower_ = start_thread(&Pager::await_memory);
}

// An exception in a thread becomes the failure of the pager.
std::thread Pager::start_thread(void (Pager::*work)()) {
  return std::thread([this, work] {
    const Status done = without_exceptions([&]() -> Status {
      (this->*work)();
      return {};
    });
    if (!done) fail(done.error());
  });
}

Status Pager::watch(int fd) const {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return system_failure("serve page faults: watch", "a descriptor");
  }
  return {};
}

Result<PagerCounters> Pager::serve() {
  start_borrowing();
  // Each filling thread copies 3 to 4 GB/s, and the first touch of fresh memory scales with the
  // threads.
  const size_t fillers = page_fillers(std::thread::hardware_concurrency());
  for (size_t i = 0; i < fillers; ++i) fillers_.push_back(start_thread(&Pager::fill));
  for (size_t i = 0; i < kAnswerers; ++i) {
    answerers_.push_back(start_thread(&Pager::answer_faults));
  }
  for (;;) {
    if (Status served = serve_once(); !served) return failure(served.error());
    if (end_finished_tasks()) break;
  }
  stop();
  MutexLock lock(mutex_);
  return counters_;
}

TaskPointer Pager::task_of(int uffd) {
  MutexLock lock(mutex_);
  for (const TaskPointer& task : tasks_) {
    if (task->uffd.get() == uffd) return task;
  }
  return nullptr;
}

Status Pager::serve_once() {
  {
    MutexLock lock(mutex_);
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
    return failure(ECANCELED, "criu restore ended before all processes were restored");
  }
  if (static_cast<uint32_t>(pid) != kRestoreFinished) return pid < 0 ? Status{} : add_task(pid);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, criu_.get(), nullptr);
  images_.criu_has_ended();
  MutexLock lock(mutex_);
  restored_ = true;
  changed_.notify_all();
  return {};
}

Status Pager::add_task(pid_t pid) {
  std::byte byte{};
  std::vector<UniqueFd> uffd;
  const auto n = receive_bytes(criu_.get(), std::span(&byte, 1), 1, uffd, "criu restore");
  if (!n) {
    return failure(n.error().errno_value, fmt::format("receive the userfaultfd of process {}: {}",
                                                      pid, n.error().message));
  }
  if (uffd.size() != 1) {
    return failure(EPROTO, fmt::format("criu restore sent no userfaultfd of process {}", pid));
  }
  auto task = std::make_shared<Task>();
  const int fd = uffd[0].get();
  task->pid = pid;
  task->uffd = std::move(uffd[0]);
  auto images = images_.of(pid);
  if (!images) return failure(images.error());
  task->pages = std::move(images->pages);
  task->missing = MissingPages(images->ranges);
  // The serving thread reads events until there are none.
  fcntl(fd, F_SETFL, O_NONBLOCK);
  if (Status watched = watch(fd); !watched) return watched;
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  return {};
}

void Pager::serve_events(const TaskPointer& task) {
  std::array<uffd_msg, 16> events;
  MutexLock lock(mutex_);
  assert(!task->reads_events && "two threads read the events of one task");
  task->reads_events = true;
  copies_changed_.wait(mutex_, [&]() PPMR_REQUIRES(mutex_) { return task->copies == 0; });
  while (!task->has_ended) {
    const ssize_t n = read(task->uffd.get(), events.data(), sizeof(events));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      task->has_ended = true;
      break;
    }
    for (const uffd_msg& event :
         std::span(events).first(static_cast<size_t>(n) / sizeof(uffd_msg))) {
      note_event(task, event);
    }
  }
  task->reads_events = false;
  copies_changed_.notify_all();
}

void Pager::note_event(const TaskPointer& task, const uffd_msg& event) {
  switch (event.event) {
    case UFFD_EVENT_PAGEFAULT:
      ++counters_.faults;
      last_fault_ = std::chrono::steady_clock::now();
      ++task->unanswered;
      faults_.push_back({task, event.arg.pagefault.address & ~(kPageBytes - 1),
                         std::chrono::steady_clock::now()});
      changed_.notify_all();
      break;
    case UFFD_EVENT_FORK: {
      auto child = std::make_shared<Task>();
      child->uffd = UniqueFd(static_cast<int>(event.arg.fork.ufd));
      child->pages = task->pages;
      child->missing = task->missing;
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

// Returns whether all pages of all tasks are in place.
bool Pager::end_finished_tasks() {
  MutexLock lock(mutex_);
  std::erase_if(tasks_, [this](const TaskPointer& task) PPMR_REQUIRES(mutex_) {
    const bool complete = restored_ && task->missing.empty() && task->unanswered == 0;
    if ((!complete && !task->has_ended) || task->copies > 0) return false;
    assert(!task->reads_events && "a task ends while its events are read");
    // The filling threads may still refer to the task.
    task->has_ended = true;
    task->uffd.reset();
    return true;
  });
  // The pager does not end before the checkpoint is sealed.
  return restored_ && tasks_.empty() && (has_memory_ || !options_.fills_early);
}

void Pager::fail(const Error& error) {
  MutexLock lock(mutex_);
  if (!failure_) failure_ = error;
  wake_serving();
}

void Pager::wake_serving() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Pager::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (borrower_.joinable()) borrower_.join();
  for (auto* threads : {&fillers_, &answerers_}) {
    for (std::thread& thread : *threads) thread.join();
    threads->clear();
  }
}

namespace {

// Replaces the images that CRIU must not restore as they are. If the tree has no locks, their image
// does not exist. Returns whether it has replaced an image.
Result<bool> change_images(const PagerOptions& options, RestoreImages& images) {
  bool has_changed = false;
  const auto change = [&](const char* name,
                          Status (*write)(const std::string&, const std::string&)) -> Status {
    const std::string from = images.path_of(name);
    if (access(from.c_str(), F_OK) != 0) return {};
    has_changed = true;
    const auto to = images.path_for_change(name);
    return to ? write(from, *to) : failure(to.error());
  };
  Status changed;
  if (options.any_file_sizes) changed = change("files.img", write_without_sizes);
  if (changed && (options.leaves_locks || options.leaves_process_locks)) {
    changed = change("filelocks.img",
                     options.leaves_process_locks ? write_leases : write_without_description_locks);
  }
  if (!changed) return failure(changed.error());
  return has_changed;
}

}  // namespace

Result<PagerCounters> serve_pages(const PagerOptions& options) {
  auto directory = RestoreImages::open(options.images, options.bundle);
  if (!directory) return failure(directory.error());
  const auto changed = change_images(options, *directory);
  if (!changed) return failure(changed.error());
  auto images = PageImages::open(std::move(*directory), options.memory);
  if (!images) return failure(images.error());
  auto pager = std::make_unique<Pager>(std::move(*images), options, *changed);
  if (Status opened = pager->open(); !opened) return failure(opened.error());
  options.listening();
  // Catches exceptions, because an exception that left this function would destroy the pager and
  // close the userfaultfds.
  auto served = without_exceptions([&] { return pager->serve(); });
  if (!served) {
    pager->stop();
    // The tasks would read zeros if the userfaultfds were closed before the guard has killed the
    // tasks. The guard kills them when this process ends. The pager stays reachable, so that leak
    // checkers do not report it.
    static auto* const kept = new std::vector<std::unique_ptr<Pager>>;
    kept->push_back(std::move(pager));
  }
  return served;
}

}  // namespace ppmr
