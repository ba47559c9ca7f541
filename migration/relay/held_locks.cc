#include "migration/relay/held_locks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <sstream>
#include <thread>

#include "base/unique_fd.h"
#include "preflight/file_digest.h"
#include "processes/carried/carried_state.h"
#include "processes/memory/injected_calls.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kBetweenTries{2};

Result<UniqueFd> take_file(const ProcessIdentity& process, int number) {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!pidfd) return system_failure("open process", std::to_string(process.pid));
  UniqueFd file(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), number, 0)));
  if (!file) {
    return system_failure("take a copy of the file with descriptor", std::to_string(number));
  }
  return file;
}

Status note_place(const ProcessIdentity& task, const Descriptor& descriptor,
                  carried::FileLock& lock) {
  lock.set_fd(descriptor.number);
  lock.set_path(descriptor.target);
  const auto file = take_file(task, descriptor.number);
  if (!file) return failure(file.error());
  struct stat found {};
  if (fstat(file->get(), &found) == 0) lock.set_inode(found.st_ino);
  lock.set_file_system(filesystem_id_of(file->get()));
  return {};
}

Status read_locks_of(const ProcessIdentity& task, carried::Process& process) {
  const auto descriptors = read_descriptors(task.pid);
  if (!descriptors) return failure(descriptors.error());
  for (const Descriptor& descriptor : *descriptors) {
    if (!descriptor.target.starts_with('/')) continue;
    const auto info = read_process_file(task.pid, fmt::format("fdinfo/{}", descriptor.number));
    if (!info) continue;
    std::istringstream lines(*info);
    for (std::string line; std::getline(lines, line);) {
      carried::FileLock lock;
      const LockOwner owner = parse_lock(line, lock);
      if (owner == LockOwner::kNone) continue;
      if (Status noted = note_place(task, descriptor, lock); !noted) return noted;
      const bool is_of_process = owner == LockOwner::kProcess;
      *(is_of_process ? process.add_process_lock() : process.add_lock()) = std::move(lock);
    }
  }
  return {};
}

bool is_file_of_source(const carried::FileLock& lock, int file) {
  struct stat found {};
  return fstat(file, &found) == 0 && found.st_ino == lock.inode() && !lock.file_system().empty() &&
         filesystem_id_of(file) == lock.file_system();
}

struct flock range_of(const carried::FileLock& lock) {
  struct flock range {};
  range.l_type = lock.is_exclusive() ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(lock.start());
  range.l_len = static_cast<off_t>(lock.length());
  return range;
}

using Locks = google::protobuf::RepeatedPtrField<carried::FileLock>;

// Tries to take each lock, without waiting. Returns an error number for each lock; 0: it is taken.
// A lock that the file description or the process has already counts as taken.
using Asking = std::function<Result<std::vector<int>>(const Locks& locks)>;

Result<std::vector<int>> ask_for_descriptions(const ProcessIdentity& task, const Locks& locks) {
  std::vector<int> errors;
  for (const carried::FileLock& lock : locks) {
    const auto file = take_file(task, lock.fd());
    if (!file) return failure(file.error());
    struct flock range = range_of(lock);
    const int asked = lock.is_flock()
                          ? flock(file->get(), (lock.is_exclusive() ? LOCK_EX : LOCK_SH) | LOCK_NB)
                          : fcntl(file->get(), F_OFD_SETLK, &range);
    errors.push_back(asked == 0 ? 0 : errno);
  }
  return errors;
}

// Stops the restored process for these calls only. If the hook were killed during a call, the
// restored process would go on with the registers of the call.
Result<std::vector<int>> ask_for_process(const ProcessIdentity& task, const Locks& locks) {
  std::vector<int> errors;
  const Status asked = with_injected_calls(task.pid, [&](InjectedCalls& calls) -> Status {
    for (const carried::FileLock& lock : locks) {
      const struct flock range = range_of(lock);
      std::array<uint64_t, sizeof(range) / sizeof(uint64_t)> words{};
      static_assert(sizeof(words) == sizeof(range) && words.size() <= InjectedCalls::kMemoryWords);
      std::memcpy(words.data(), &range, sizeof(range));
      const auto fd = static_cast<uint64_t>(lock.fd());
      const auto answer = calls.call_with_memory(SYS_fcntl, {fd, F_SETLK, 0}, 2, words);
      if (!answer) return failure(answer.error());
      errors.push_back(*answer == 0 ? 0 : static_cast<int>(-*answer));
    }
    return {};
  });
  if (!asked) return failure(asked.error());
  return errors;
}

struct Taking {
  LockTurn turn;
  Clock::time_point deadline;

  Status take(const Locks& locks, const ProcessIdentity& task, const Asking& asking) const;
  Result<bool> may_wait(const carried::FileLock& lock, const ProcessIdentity& task,
                        int error) const;
};

// Returns whether to try again to take a lock; false: the lock is left to the source.
Result<bool> Taking::may_wait(const carried::FileLock& lock, const ProcessIdentity& task,
                              int error) const {
  if (error != EAGAIN && error != EACCES && error != EINTR) {
    return system_failure("take the lock on", lock.path(), error);
  }
  if (turn == LockTurn::kBeforeVote) {
    const auto file = take_file(task, lock.fd());
    if (!file) return failure(file.error());
    if (is_file_of_source(lock, file->get())) return false;
  } else if (Clock::now() < deadline) {
    return true;
  }
  return failure(EBUSY, fmt::format("process {} holds a lock on {} (descriptor {}), which another "
                                    "program has taken at the target: end that program",
                                    task.pid, lock.path(), lock.fd()));
}

Status Taking::take(const Locks& locks, const ProcessIdentity& task, const Asking& asking) const {
  if (locks.empty()) return {};
  for (;;) {
    const auto errors = asking(locks);
    if (!errors) return failure(errors.error());
    bool waits = false;
    for (int i = 0; i < locks.size(); ++i) {
      const int error = errors->at(static_cast<size_t>(i));
      const auto again = error == 0 ? Result<bool>(false) : may_wait(locks[i], task, error);
      if (!again) return failure(again.error());
      waits |= *again;
    }
    if (!waits) return {};
    std::this_thread::sleep_for(kBetweenTries);
  }
}

// Returns whether the file with this name here is the source's file.
bool is_shared_by_name(const carried::FileLock& lock) {
  const UniqueFd file(open(lock.path().c_str(), O_PATH | O_CLOEXEC));
  return file && is_file_of_source(lock, file.get());
}

}  // namespace

LockOwner parse_lock(const std::string& line, carried::FileLock& lock) {
  std::istringstream words(line);
  std::string lock_word, number, kind, mode, access, pid, file, end;
  uint64_t start = 0;
  words >> lock_word >> number >> kind >> mode >> access >> pid >> file >> start >> end;
  if (!words || lock_word != "lock:" || mode != "ADVISORY") return LockOwner::kNone;
  if (kind != "FLOCK" && kind != "OFDLCK" && kind != "POSIX") return LockOwner::kNone;
  if (access != "READ" && access != "WRITE") return LockOwner::kNone;
  const LockOwner owner = kind == "POSIX" ? LockOwner::kProcess : LockOwner::kDescription;
  lock.set_is_flock(kind == "FLOCK");
  lock.set_is_exclusive(access == "WRITE");
  lock.set_start(start);
  if (end == "EOF") return owner;
  uint64_t last = 0;
  std::istringstream number_at_end(end);
  const bool is_number = (number_at_end >> last) && number_at_end.eof();
  if (!is_number || last < start) return LockOwner::kNone;
  lock.set_length(last - start + 1);
  return owner;
}

Status read_locks(const std::vector<ProcessIdentity>& tasks, carried::State& state) {
  for (size_t i = 0; i < tasks.size() && i < static_cast<size_t>(state.process_size()); ++i) {
    carried::Process& process = *state.mutable_process(static_cast<int>(i));
    const Status read = read_locks_of(tasks[i], process);
    if (!read) return read;
  }
  return {};
}

bool carries_locks(const carried::State& state) {
  return std::any_of(state.process().begin(), state.process().end(), [](const auto& process) {
    return !process.lock().empty() || !process.process_lock().empty();
  });
}

bool carries_process_locks(const carried::State& state) {
  return std::any_of(state.process().begin(), state.process().end(),
                     [](const auto& process) { return !process.process_lock().empty(); });
}

Status leave_process_locks(carried::State& state) {
  for (carried::Process& process : *state.mutable_process()) {
    for (const carried::FileLock& lock : process.process_lock()) {
      if (!lock.is_exclusive() || !is_shared_by_name(lock)) continue;
      return failure(ENOTSUP,
                     fmt::format("process {} holds a lock on {} (F_SETLK), which is one file for "
                                 "both nodes, and CRIU could not take it at the target while the "
                                 "process has it at the source: let the program release the lock",
                                 process.pid(0), lock.path()));
    }
    process.clear_process_lock();
  }
  return {};
}

Status take_locks(const carried::State& state, const std::vector<ProcessIdentity>& tasks,
                  LockTurn turn, milliseconds patience) {
  if (!carries_locks(state)) return {};
  const auto here = tasks_by_pids(tasks);
  if (!here) return failure(here.error());
  const Taking taking{turn, Clock::now() + patience};
  for (const carried::Process& process : state.process()) {
    if (process.pid().empty()) continue;
    if (process.lock().empty() && process.process_lock().empty()) continue;
    const auto found = here->find({process.pid().begin(), process.pid().end()});
    if (found == here->end()) {
      return failure(ESRCH,
                     fmt::format("process {} holds locks, and was not restored under its pid",
                                 process.pid(0)));
    }
    const ProcessIdentity& task = found->second;
    Status taken = taking.take(process.lock(), task, [&](const Locks& locks) {
      return ask_for_descriptions(task, locks);
    });
    if (taken) {
      taken = taking.take(process.process_lock(), task,
                          [&](const Locks& locks) { return ask_for_process(task, locks); });
    }
    if (!taken) return taken;
  }
  return {};
}

}  // namespace ppmr
