// Compares a tree with the policy of this node (preflight/policy) before CRIU restores the tree
// here.
//
// CRIU restores as root: it opens the files of a tree before it gives up its privileges. So a tree
// without privileges may only have what its users could get on this node themselves. A tree that
// the policy lets run as root could get everything anyway. For such a tree check_restart() compares
// only users, capabilities, executables, root directories and namespaces.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "mount/image_bundle.h"
#include "preflight/policy/restart_policy.h"

namespace ppmr {

struct TreeToRestore {
  std::string images;                         // a directory whose files cannot change
  const ImageBundle* small_images = nullptr;  // images that CRIU reads instead of the files there
  std::string bundle;                         // the bundle of a runc container; "": none
  std::vector<std::string> criu_options;      // in the form of CRIU's command line
};

// Compares the tree with the policy. Errors: EPERM with what the policy does not accept and how to
// accept it; EPROTO for images that CRIU has not written; of the file system.
Status check_restart(const RestartPolicy& policy, const TreeToRestore& tree);

// A process that a peer announces before it dumps a tree. The peer may lie, so only check_restart()
// decides. check_announced() has the same errors.
struct AnnouncedProcess {
  pid_t pid = 0;
  uid_t user = 0;
  std::string bundle;
};
Status check_announced(const RestartPolicy& policy, const std::vector<AnnouncedProcess>& processes);

}  // namespace ppmr
