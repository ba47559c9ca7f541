#include "processes/memory/stopped_process.h"

#include <cerrno>
#include <set>
#include <thread>
#include <vector>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

bool has_ended(pid_t thread) {
  const auto stat = read_process_stat(thread);
  return !stat || stat->is_dead();
}

// Stops the threads that are not in `known` yet, all at once.
Status stop_others(const std::vector<pid_t>& threads, std::set<pid_t>& known,
                   std::chrono::milliseconds patience, std::vector<StoppedThread>& stopped) {
  const size_t before = stopped.size();
  for (const pid_t thread : threads) {
    if (!known.insert(thread).second) continue;
    auto asked = StoppedThread::ask_to_stop(thread);
    if (!asked && has_ended(thread)) continue;  // the first thread may end before the others
    if (!asked) return failure(asked.error());
    stopped.push_back(std::move(*asked));
  }
  for (size_t i = before; i < stopped.size(); ++i) {
    const Status done = stopped[i].await_stopped(patience);
    if (!done && !has_ended(stopped[i].id())) return done;
  }
  return {};
}

// Repeats until it finds no new thread, because a thread that still ran may have started another
// one.
Status stop_all_of(pid_t pid, std::chrono::milliseconds patience,
                   std::vector<StoppedThread>& stopped) {
  std::set<pid_t> known;
  for (;;) {
    const size_t before = known.size();
    const auto threads = read_threads(pid);
    if (!threads) return failure(threads.error());
    if (Status done = stop_others(*threads, known, patience, stopped); !done) return done;
    if (known.size() == before) return {};
  }
}

}  // namespace

Status with_stopped_processes(const std::vector<pid_t>& pids, const std::function<Status()>& work,
                              std::chrono::milliseconds patience) {
  Status done;
  std::thread([&] {
    std::vector<StoppedThread> stopped;
    for (const pid_t pid : pids) {
      done = stop_all_of(pid, patience, stopped);
      if (!done && done.error().errno_value == ESRCH && pid != pids.front()) done = {};
      if (!done) return;
    }
    done = work();
  }).join();
  return done;
}

}  // namespace ppmr
