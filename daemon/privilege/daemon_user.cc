#include "daemon/privilege/daemon_user.h"

#include <grp.h>
#include <pwd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <set>

#include "base/whole_file.h"

namespace ppmr {
namespace {

constexpr const char* kUsualName = "ppmr";
// systemd's UIDS-GIDS.md lists this range as unused. Debian Policy 9.2.2 leaves it to the
// administrator's accounts, so the function below looks for an account with the id.
constexpr uint32_t kFirstFreeId = 1879048192;
constexpr uint32_t kFreeIds = uint32_t{1} << 28;

std::set<uid_t> users_of_processes() {
  std::set<uid_t> users;
  for (const auto& entry : list_directory("/proc").value_or(DirectoryEntries())) {
    struct stat found {};
    if (::stat(entry.path().c_str(), &found) == 0) users.insert(found.st_uid);
  }
  return users;
}

DaemonUser user_without_account() {
  const std::set<uid_t> taken = users_of_processes();
  for (;;) {
    uint32_t random = 0;
    // getrandom(2) cannot fail for this size.
    if (::getrandom(&random, sizeof(random), 0) != sizeof(random)) std::abort();
    const uid_t id = kFirstFreeId + random % kFreeIds;
    if (taken.contains(id) || ::getpwuid(id) != nullptr || ::getgrgid(id) != nullptr) continue;
    return {.uid = id, .gid = id};
  }
}

}  // namespace

Result<DaemonUser> choose_daemon_user(const std::string& name) {
  const uid_t caller = ::geteuid();
  const passwd* account = ::getpwnam(name.empty() ? kUsualName : name.c_str());
  if (!name.empty() && account == nullptr) {
    return failure(ENOENT, "--user " + name +
                               ": there is no such user (create it with `adduser "
                               "--system " +
                               name + "`)");
  }
  if (!name.empty() && account->pw_uid == 0) {
    return failure(
        EPERM,
        "--user " + name + ": the daemon does not run as root after its set-up: name another user");
  }
  if (caller != 0) {
    if (!name.empty() && account->pw_uid != caller) {
      return failure(EPERM, "--user " + name + ": only root can start a daemon as another user");
    }
    account = ::getpwuid(caller);
    return DaemonUser{account == nullptr ? "" : account->pw_name, caller, ::getegid()};
  }
  if (account == nullptr || account->pw_uid == 0) return user_without_account();
  return DaemonUser{account->pw_name, account->pw_uid, account->pw_gid};
}

}  // namespace ppmr
