// What users may do with files on this node.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct UserIdentity {
  uid_t user = 0;
  gid_t group = 0;
  std::vector<gid_t> groups;

  auto operator<=>(const UserIdentity&) const = default;
};

struct FileAccess {
  std::string path;
  int mode = 0;                // R_OK, W_OK and X_OK, as for access(2)
  bool or_executable = false;  // whether X_OK alone is enough, too

  auto operator<=>(const FileAccess&) const = default;
};

// Returns the accesses that this user does not have. A file that does not exist counts as
// accessible, because no process can open it. A child process checks as that user. Errors: of
// starting the child; EPERM if this process may not become that user.
Result<std::vector<FileAccess>> denied_to(const UserIdentity& user,
                                          const std::vector<FileAccess>& accesses);

// Returns the groups of a user on this node. If the node does not know the user, returns the group
// with the user's number.
std::vector<gid_t> groups_of(uid_t user);

}  // namespace ppmr
