#include "preflight/policy/user_access.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

constexpr int kCannotBecomeUser = 2;

bool become(const UserIdentity& user) {
  if (geteuid() == user.user && geteuid() != 0) return true;
  return setgroups(user.groups.size(), user.groups.data()) == 0 &&
         setresgid(user.group, user.group, user.group) == 0 &&
         setresuid(user.user, user.user, user.user) == 0;
}

bool is_denied(const FileAccess& wanted) {
  const char* path = wanted.path.c_str();
  const auto denied = [path](int mode) {
    return access(path, mode) != 0 && errno != ENOENT && errno != ENOTDIR;
  };
  return denied(wanted.mode) && !(wanted.or_executable && !denied(X_OK));
}

// Runs in the child. Answers with one byte for each access.
[[noreturn]] void answer(const UserIdentity& user, const std::vector<FileAccess>& accesses,
                         int pipe) {
  if (!become(user)) _exit(kCannotBecomeUser);
  for (const FileAccess& wanted : accesses) {
    const char verdict = is_denied(wanted) ? 1 : 0;
    if (write(pipe, &verdict, 1) != 1) _exit(1);
  }
  _exit(0);
}

}  // namespace

Result<std::vector<FileAccess>> denied_to(const UserIdentity& user,
                                          const std::vector<FileAccess>& accesses) {
  std::vector<FileAccess> denied;
  int ends[2];
  const std::string check = "the check of files as user " + std::to_string(user.user);
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("create a pipe for", check);
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t child = fork();
  if (child < 0) return system_failure("start", check);
  if (child == 0) answer(user, accesses, theirs.get());
  theirs.reset();
  size_t answered = 0;
  for (char verdict = 0; answered < accesses.size(); ++answered) {
    ssize_t count;
    do {
      count = read(ours.get(), &verdict, 1);
    } while (count < 0 && errno == EINTR);
    if (count != 1) break;
    if (verdict != 0) denied.push_back(accesses[answered]);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0 || answered != accesses.size()) {
    return failure(EPERM,
                   fmt::format("cannot check files as user {}: run the target as root", user.user));
  }
  return denied;
}

std::vector<gid_t> groups_of(uid_t user) {
  const passwd* entry = getpwuid(user);
  if (entry == nullptr) return {user};
  int count = 64;
  std::vector<gid_t> groups(static_cast<size_t>(count));
  if (getgrouplist(entry->pw_name, entry->pw_gid, groups.data(), &count) < 0) {
    groups.resize(static_cast<size_t>(count));
    if (getgrouplist(entry->pw_name, entry->pw_gid, groups.data(), &count) < 0) count = 0;
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

}  // namespace ppmr
