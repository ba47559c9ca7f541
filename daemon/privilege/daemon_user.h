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

// With a name: that account. Without: the account "ppmr" if it exists, else an id that no account
// and no process has, so that nothing else runs as this user (as systemd's DynamicUser=, in another
// range). Not "nobody": other services share it. For a caller who is not root: the caller.
// Errors: ENOENT for an unknown name; EPERM if the name is root's, or another one than the
// caller's.
Result<DaemonUser> choose_daemon_user(const std::string& name);

}  // namespace ppmr
