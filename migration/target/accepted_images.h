// The images of a tree that this node has judged: the restart policy accepts them, and what the
// supervisor must know of them before the restore.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "migration/records/record_store.h"
#include "migration/target/sealed_images.h"

namespace ppmr {

struct AcceptedImages {
  SealedImages images;
  // Locks that the hook takes, see migration/relay/held_locks.h.
  bool has_locks = false;
  bool has_process_locks = false;
  // A root process that asked for a signal when its parent ends would get it when CRIU ends, and
  // again when the supervisor ends. So the supervisor becomes its parent, and stays.
  bool needs_parent = false;
};

// Opens the sealed checkpoint, with that inode, of a tree; leaves in the work directory what the
// hook applies, which has no access to the checkpoint. Errors: EPERM if the policy does not accept
// the tree, which the log of the target's daemon gets to know; ENOTSUP for a container whose first
// process needs its parent; those of SealedImages.
Result<AcceptedImages> accept_images(const OwnershipRecord& record, size_t tree, uint64_t inode,
                                     const std::string& work);

}  // namespace ppmr
