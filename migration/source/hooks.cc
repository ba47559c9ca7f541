#include "migration/source/hooks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "restart_loader/criu/run_command.h"

namespace ppmr {
namespace {

constexpr const char* kNames[] = {"before-freeze", "after-run", "after-abort"};

// `ppmr migrate` runs as root, so a user who can change a hook could do anything as root.
Status check_safe(const std::string& path, const struct stat& found) {
  if (found.st_uid != 0 && found.st_uid != ::geteuid()) {
    return failure(EPERM, fmt::format("{} belongs to user {}: it must belong to root or to the "
                                      "user who migrates",
                                      path, found.st_uid));
  }
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return failure(EPERM, fmt::format("{}: other users may write to it: chmod go-w {}", path, path));
}

// Returns whether there is a hook to run.
Result<bool> find_hook(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return false;
    return system_failure("look at the hook", path);
  }
  if (Status safe = check_safe(path, found); !safe) return failure(safe.error());
  if (!S_ISREG(found.st_mode) || (found.st_mode & S_IXUSR) == 0) {
    return failure(EACCES, fmt::format("hook {}: not an executable file: chmod +x {}", path, path));
  }
  return true;
}

}  // namespace

Status check_hooks(const HookSettings& settings) {
  if (settings.directory.empty()) return {};
  if (settings.directory.find('=') != std::string::npos) {  // env(1) would take it for a variable
    return failure(EINVAL,
                   fmt::format("hooks {}: the path must not contain =", settings.directory));
  }
  struct stat found {};
  if (::stat(settings.directory.c_str(), &found) != 0) {
    return system_failure("look at the directory of hooks", settings.directory);
  }
  if (!S_ISDIR(found.st_mode))
    return system_failure("read hooks from", settings.directory, ENOTDIR);
  if (Status safe = check_safe(settings.directory, found); !safe) return safe;
  for (const char* name : kNames) {
    const auto hook = find_hook(settings.directory + "/" + name);
    if (!hook) return failure(hook.error());
  }
  return {};
}

Status run_hook(const HookSettings& settings, const std::string& name, const HookFacts& facts) {
  if (settings.directory.empty()) return {};
  const std::string path = settings.directory + "/" + name;
  const auto hook = find_hook(path);
  if (!hook) return failure(hook.error());
  if (!*hook) return {};
  const auto ended =
      run_command({"env", "PPMR_MIGRATION=" + facts.migration,
                   fmt::format("PPMR_PIDS={}", fmt::join(facts.pids, " ")),
                   "PPMR_TARGET=" + facts.target, "PPMR_REASON=" + facts.reason, path},
                  settings.timeout);
  if (ended && ended->succeeded) return {};
  if (!ended && ended.error().errno_value == ETIMEDOUT) {
    return failure(ETIMEDOUT, fmt::format("hook {} did not end within {} ms, and was killed", path,
                                          settings.timeout.count()));
  }
  if (!ended) return failure(ended.error());
  std::string said = ended->text;
  while (said.ends_with('\n')) said.pop_back();
  return failure(ECHILD, fmt::format("hook {} {}: {}", path, ended->ending,
                                     said.empty() ? "it printed no reason" : said));
}

}  // namespace ppmr
