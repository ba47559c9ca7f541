// Prepares the directories of a rehearsal, in which CRIU may replace the sockets that the tree has
// bound. On shared storage, the original sockets are those of the source.
#pragma once

#include "base/result.h"
#include "mount/image_bundle.h"

namespace ppmr {

// In the mount namespace of this process, hides each directory in which a socket of the tree is
// bound. CRIU then makes and removes sockets in a tmpfs below `work_directory`. The tmpfs shows all
// other entries of the directory. `images` and `bundle`: as for read_tree_images(). Call it in a
// mount namespace that others do not see. Errors: those of the file system; E2BIG if a directory
// has too many entries; those of read_tree_images().
Status shield_socket_directories(const std::string& images, const ImageBundle* bundle,
                                 const std::string& work_directory);

}  // namespace ppmr
