#include "jobs/agent/long_commands.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace ppmr {
namespace {

constexpr size_t kOutputMaxBytes = 4096;

std::string text_of(const UniqueFd& output) {
  std::string text(kOutputMaxBytes, '\0');
  const ssize_t count = pread(output.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

Result<bool> LongCommands::await(const std::string& name, const std::vector<std::string>& argv,
                                 std::chrono::milliseconds patience) {
  UniqueFd end;
  {
    MutexLock lock(mutex_);
    auto found = running_.find(name);
    if (found == running_.end()) {
      UniqueFd output(memfd_create("output", MFD_CLOEXEC));
      if (!output) return system_failure("create a memfd for the output of", argv.at(0));
      auto started = ChildProcess::start(
          {.argv = argv,
           .files = {{output.get(), STDOUT_FILENO}, {output.get(), STDERR_FILENO}},
           .group = SpawnGroup::kOwn});
      if (!started) return failure(started.error());
      found = running_.emplace(name, Running{std::move(*started), std::move(output)}).first;
    }
    end = UniqueFd(fcntl(found->second.process.pidfd(), F_DUPFD_CLOEXEC, 0));
  }
  if (!end) return system_failure("watch the process of", argv.at(0));
  pollfd ended{end.get(), POLLIN, 0};
  (void)poll(&ended, 1, static_cast<int>(patience.count()));
  MutexLock lock(mutex_);
  const auto found = running_.find(name);
  if (found == running_.end()) return failure(ECANCELED, argv.at(0) + " was cancelled");
  if (!found->second.process.ended()) return false;
  const Running done = std::move(found->second);
  running_.erase(found);
  if (done.process.succeeded()) return true;
  const std::string text = text_of(done.output);
  return failure(ECHILD, text.empty() ? argv.at(0) + " " + done.process.how_it_ended() : text);
}

bool LongCommands::runs(const std::string& name) const {
  MutexLock lock(mutex_);
  return running_.contains(name);
}

void LongCommands::cancel(const std::string& name) {
  Running cancelled;
  MutexLock lock(mutex_);
  const auto found = running_.find(name);
  if (found == running_.end()) return;
  cancelled = std::move(found->second);
  running_.erase(found);
}

}  // namespace ppmr
