// The images of a tree that the restart policy of this node accepts, and what the supervisor must
// know about them before the restore.
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

// Opens the sealed checkpoint of a tree, and checks its images. `inode`: of the checkpoint's
// directory. Writes the state that the hook applies to the work directory, because the hook has no
// access to the checkpoint. Errors: EPERM if the policy does not accept the tree (also in the log
// of the target's daemon); ENOTSUP for a container whose first process needs its parent; those of
// SealedImages.
Result<AcceptedImages> accept_images(const OwnershipRecord& record, size_t tree, uint64_t inode,
                                     const std::string& work);

}  // namespace ppmr
