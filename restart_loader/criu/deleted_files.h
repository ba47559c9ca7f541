// Files in memory (tmpfs) that are deleted but open travel apart from CRIU's images, like the other
// files of their tmpfs (migration/source/file_parts.h).
//
//   dump      CRIU asks for the data of such a file, and the library finds none. The image of the
//             file gets another name: a CRIU without the library misses it and fails, instead of
//             restoring zeros.
//   restore   the tmpfs that the supervisor has filled has the file in its root, under a name of
//             ours. CRIU creates an empty file, to delete it again. The library puts a link to the
//             filled file in its place. The supervisor removes the name of ours with its mount.
//
// A link, because the restore may be tried again.
//
// Rejected: to fill CRIU's file from a memory, as the library can for memfds. It takes 0.3 s for
// each GiB, and the memory twice.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ppmr {

// The names of images of a deleted file, to which CRIU appends a hexadecimal number: as CRIU writes
// it, and without the data.
inline constexpr const char* kDeletedFile = "ghost-file-";
inline constexpr const char* kDeletedApart = "ghost-apart-";

// Returns the inode that such an image names; 0: it names none. `image`: its first bytes, at least
// kDeletedHeadBytes if it has so many. Pure.
inline constexpr size_t kDeletedHeadBytes = 64;
uint64_t inode_in_deleted_image(const unsigned char* image, size_t bytes);

}  // namespace ppmr
