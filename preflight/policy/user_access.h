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
  int mode = 0;                // R_OK, W_OK and X_OK of access(2)
  bool or_executable = false;  // X_OK is enough, too

  auto operator<=>(const FileAccess&) const = default;
};

// Returns the accesses that this user does not have. What does not exist counts as accessible:
// nothing can be opened there. A child process asks as that user. Errors: of starting it; EPERM if
// this process may not become that user.
Result<std::vector<FileAccess>> denied_to(const UserIdentity& user,
                                          const std::vector<FileAccess>& accesses);

// The groups of a user on this node; one that the node does not know has the group of the same
// number.
std::vector<gid_t> groups_of(uid_t user);

}  // namespace ppmr
