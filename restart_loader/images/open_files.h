// Rewrites files.img and filelocks.img: the regular files that a tree had open or mapped when it
// was dumped, and its locks on them.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Writes the image at `from` to `to` without the sizes of written files. CRIU then restores them
// whatever size they have. Errors: of the file system; EPROTO.
Status write_without_sizes(const std::string& from, const std::string& to);

// Writes the image at `from`, filelocks.img, to `to` without the locks that belong to open file
// descriptions: flock(2) and F_OFD_SETLK. Errors: of the file system; EPROTO.
Status write_without_description_locks(const std::string& from, const std::string& to);
// Like write_without_description_locks(), but also leaves out the locks of processes (F_SETLK):
// only leases stay.
Status write_leases(const std::string& from, const std::string& to);

}  // namespace ppmr
