// Lets CRIU archive files without gzip.
//
// CRIU dumps what a tmpfs holds with `tar --create --gzip`, and restores it with `tar --extract
// --gzip`, while the processes stand still. One core compresses 22 MiB/s: a container with 200 MB
// of files in its tmpfs stood still for 11.5 s, and for 2.2 s without gzip. The archive is a file
// in the mount, and the stream compresses it if the user has asked for compression.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Puts a script named tar in front of this process's PATH, for the CRIU that this process becomes.
// A CRIU in a user namespace that may not read `work_directory` runs the real tar, at both nodes.
// Errors: of the file system.
Status put_plain_tar_in_path(const std::string& work_directory);

}  // namespace ppmr
