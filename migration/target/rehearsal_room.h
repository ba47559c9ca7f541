// Where a rehearsal restores a tree: a network that reaches nobody, and directories in which CRIU
// may replace the sockets that the tree has bound, because on shared storage they are the source's.
#pragma once

#include "base/result.h"
#include "mount/image_bundle.h"

namespace ppmr {

// Hides each directory in which a socket of the tree is bound, in the mount namespace of this
// process: what CRIU makes and removes there is in a tmpfs below `work_directory`, and everything
// else stays what it was. `images` and `bundle`: as for read_tree_images(). Call it in a mount
// namespace that others do not see. Errors: of the file system; E2BIG if a directory has too many
// entries; those of read_tree_images().
Status shield_socket_directories(const std::string& images, const ImageBundle* bundle,
                                 const std::string& work_directory);

}  // namespace ppmr
