// The FUSE operations of the source mount, grouped by the file that defines them. See
// mount/front_end.h for what an operation returns.
#pragma once

#include <fuse3/fuse_lowlevel.h>

#include "fuse_source/source_mount.h"

namespace ppmr::source_operations_detail {

inline SourceMount& mount_of(fuse_req_t request) {
  return static_cast<SourceMount&>(front_end_of(request));
}

// Returns a function that returns true after a signal that kills the caller has interrupted
// `request`. The function may be called until `request` has a reply.
inline Interrupted interruption_of(fuse_req_t request) {
  return [request] {
    return fuse_req_interrupted(request) != 0 &&
           mount_of(request).is_dying(fuse_req_ctx(request)->pid);
  };
}

// Returns the node of `inode`. Errors: ESTALE.
Result<SourceNodePointer> node_of(fuse_req_t request, fuse_ino_t inode);

// Returns how long the kernel may cache the name and the attributes of `node`: without a limit,
// because only requests of the kernel change them. The exception is a top-level file: `send-memory`
// changes its size, so the kernel may not cache its attributes.
Validity validity_of(const SourceNode& node);

void add_name_operations(fuse_lowlevel_ops& operations);       // ops_names.cc
void add_attribute_operations(fuse_lowlevel_ops& operations);  // ops_attributes.cc
void add_file_operations(fuse_lowlevel_ops& operations);       // ops_files.cc

}  // namespace ppmr::source_operations_detail
