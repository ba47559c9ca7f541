// The user as which a data daemon runs after its set-up.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace ppmr {

struct DaemonUser {
  std::string name;  // empty: an id without an account
  uid_t uid = 0;
  gid_t gid = 0;
};

// Chooses the user of the daemon. With a name, returns that account. Without a name, returns the
// account "ppmr" if it exists, and otherwise an id that no account and no process has. The daemon
// then shares its user with no other process (like systemd's DynamicUser=, in another range). It is
// never "nobody", because other services share that account. If the caller is not root, returns the
// caller. Errors: ENOENT for an unknown name; EPERM if the name is root's, or if a caller who is
// not root names another user.
Result<DaemonUser> choose_daemon_user(const std::string& name);

}  // namespace ppmr
