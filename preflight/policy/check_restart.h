// Compares a tree that is to be restored on this node with the policy of this node
// (preflight/policy).
//
// CRIU restores as root: it opens the files of a tree before it gives up its privileges. So a tree
// without privileges may only have what its users could get on this node themselves. A tree that
// the policy lets run as root could get everything anyway: of it only users, capabilities,
// executables, root directories and namespaces are compared.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "mount/image_bundle.h"
#include "preflight/policy/restart_policy.h"

namespace ppmr {

struct TreeToRestore {
  std::string images;                         // a directory whose files cannot change
  const ImageBundle* small_images = nullptr;  // what CRIU reads in place of files there
  std::string bundle;                         // of a runc container; "": none
  std::vector<std::string> criu_options;      // as on the command line
};

// Errors: EPERM with what the policy does not accept and how to accept it; EPROTO for images that
// CRIU has not written; of the file system.
Status check_restart(const RestartPolicy& policy, const TreeToRestore& tree);

// Of what a peer announces before it dumps a tree. A peer may lie here: check_restart() decides.
// The same errors.
struct AnnouncedProcess {
  pid_t pid = 0;
  uid_t user = 0;
  std::string bundle;
};
Status check_announced(const RestartPolicy& policy, const std::vector<AnnouncedProcess>& processes);

}  // namespace ppmr
