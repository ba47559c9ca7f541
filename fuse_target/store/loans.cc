#include "fuse_target/store/loans.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cassert>
#include <string>

namespace ppmr {

Result<std::unique_ptr<Loans>> Loans::create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll || !stop) return system_failure("prepare to lend files: create", "an epoll set");
  epoll_event event{.events = EPOLLIN, .data = {.fd = stop.get()}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, stop.get(), &event) != 0) {
    return system_failure("prepare to lend files: watch", "an eventfd");
  }
  return std::unique_ptr<Loans>(new Loans(std::move(epoll), std::move(stop)));
}

Loans::Loans(UniqueFd epoll, UniqueFd stop)
    : epoll_(std::move(epoll)), stop_(std::move(stop)), thread_([this] { end_loans(); }) {}

Loans::~Loans() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

Result<Loans::Added> Loans::add(FileLoan part) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return system_failure("lend a file: create", "a pipe to its borrower");
  UniqueFd ours(ends[0]);
  UniqueFd borrowers(ends[1]);
  const int fd = ours.get();
  MutexLock lock(mutex_);
  if (entries_.size() >= kLoansMax) {
    return failure(EAGAIN, "lend a file: there are " + std::to_string(kLoansMax) +
                               " loans already: try again when a restore has ended");
  }
  // The thread waits only for the end of the last borrower (EPOLLHUP, which is always reported).
  // Bytes that a borrower writes stay in the pipe.
  epoll_event event{.events = 0, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return system_failure("lend a file: watch", "the pipe to its borrower");
  }
  bytes_ += part.bytes();
  assert(!entries_.contains(fd) && "an ended loan still has its descriptor");
  Entry& entry = entries_[fd];
  entry.end = std::move(ours);
  entry.parts.push_back(std::move(part));
  return Added{fd, std::move(borrowers)};
}

Status Loans::extend(int id, FileLoan part) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return failure(ENOENT, "there is no loan " + std::to_string(id));
  bytes_ += part.bytes();
  found->second.parts.push_back(std::move(part));
  return {};
}

LoanCounters Loans::counters() const {
  MutexLock lock(mutex_);
  return {entries_.size(), bytes_};
}

void Loans::end_loans() {
  for (;;) {
    std::array<epoll_event, 64> events;
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) {  // count is -1 after EINTR
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == stop_.get()) return;
      // The loan is destroyed without the lock, because closing a spill file takes long. The
      // descriptor is closed before a new loan can use its number.
      MutexLock lock(mutex_);
      auto ended = entries_.extract(fd);
      if (ended.empty()) continue;
      for (const FileLoan& part : ended.mapped().parts) {
        assert(bytes_ >= part.bytes() && "a loan ended twice");
        bytes_ -= part.bytes();
      }
      assert((!entries_.empty() || bytes_ == 0) && "bytes are lent although there is no loan");
      lock.unlock();
    }
  }
}

}  // namespace ppmr
