#include "migration/relay/held_locks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sstream>
#include <thread>

#include "base/unique_fd.h"
#include "preflight/file_digest.h"
#include "processes/carried/carried_state.h"
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
      if (!parse_lock(line, lock)) continue;
      lock.set_fd(descriptor.number);
      lock.set_path(descriptor.target);
      const auto file = take_file(task, descriptor.number);
      if (!file) return failure(file.error());
      struct stat found {};
      if (fstat(file->get(), &found) == 0) lock.set_inode(found.st_ino);
      lock.set_file_system(filesystem_id_of(file->get()));
      *process.add_lock() = std::move(lock);
    }
  }
  return {};
}

bool is_file_of_source(const carried::FileLock& lock, int file) {
  struct stat found {};
  return fstat(file, &found) == 0 && found.st_ino == lock.inode() && !lock.file_system().empty() &&
         filesystem_id_of(file) == lock.file_system();
}

// Without waiting. A lock that this open file description has already is no obstacle.
bool try_lock(const carried::FileLock& lock, int file) {
  if (lock.is_flock()) {
    return flock(file, (lock.is_exclusive() ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0;
  }
  struct flock wanted {};
  wanted.l_type = lock.is_exclusive() ? F_WRLCK : F_RDLCK;
  wanted.l_whence = SEEK_SET;
  wanted.l_start = static_cast<off_t>(lock.start());
  wanted.l_len = static_cast<off_t>(lock.length());
  return fcntl(file, F_OFD_SETLK, &wanted) == 0;
}

Status take_lock(const carried::FileLock& lock, const ProcessIdentity& task, LockTurn turn,
                 Clock::time_point deadline) {
  const auto file = take_file(task, lock.fd());
  if (!file) return failure(file.error());
  while (!try_lock(lock, file->get())) {
    if (errno != EWOULDBLOCK && errno != EAGAIN && errno != EACCES && errno != EINTR) {
      return system_failure("take the lock on", lock.path());
    }
    const bool is_shared = is_file_of_source(lock, file->get());
    if (turn == LockTurn::kBeforeVote && is_shared) return {};
    if (turn == LockTurn::kAfterDecision && Clock::now() < deadline) {
      std::this_thread::sleep_for(kBetweenTries);
      continue;
    }
    return failure(EBUSY,
                   fmt::format("process {} holds a lock on {} (descriptor {}), which another "
                               "program has taken at the target: end that program",
                               task.pid, lock.path(), lock.fd()));
  }
  return {};
}

}  // namespace

bool parse_lock(const std::string& line, carried::FileLock& lock) {
  std::istringstream words(line);
  std::string lock_word, number, kind, mode, access, pid, file, end;
  uint64_t start = 0;
  words >> lock_word >> number >> kind >> mode >> access >> pid >> file >> start >> end;
  if (!words || lock_word != "lock:" || mode != "ADVISORY") return false;
  if (kind != "FLOCK" && kind != "OFDLCK") return false;
  if (access != "READ" && access != "WRITE") return false;
  lock.set_is_flock(kind == "FLOCK");
  lock.set_is_exclusive(access == "WRITE");
  lock.set_start(start);
  if (end == "EOF") return true;
  uint64_t last = 0;
  std::istringstream number_at_end(end);
  if (!(number_at_end >> last) || !number_at_end.eof() || last < start) return false;
  lock.set_length(last - start + 1);
  return true;
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
  for (const carried::Process& process : state.process()) {
    if (!process.lock().empty()) return true;
  }
  return false;
}

Status take_locks(const carried::State& state, const std::vector<ProcessIdentity>& tasks,
                  LockTurn turn, milliseconds patience) {
  if (!carries_locks(state)) return {};
  const auto here = tasks_by_pids(tasks);
  if (!here) return failure(here.error());
  const auto deadline = Clock::now() + patience;
  for (const carried::Process& process : state.process()) {
    if (process.lock().empty() || process.pid().empty()) continue;
    const auto found = here->find({process.pid().begin(), process.pid().end()});
    if (found == here->end()) {
      return failure(ESRCH,
                     fmt::format("process {} holds locks, and was not restored under its pid",
                                 process.pid(0)));
    }
    for (const carried::FileLock& lock : process.lock()) {
      if (Status taken = take_lock(lock, found->second, turn, deadline); !taken) return taken;
    }
  }
  return {};
}

}  // namespace ppmr
