// Files in memory (tmpfs) that are deleted but open travel apart from CRIU's images, like the other
// files of their tmpfs (migration/source/file_parts.h).
//
//   dump      CRIU asks for the data of such a file, and the library finds none. The image of the
//             file gets another name: a CRIU without the library misses it and fails, instead of
//             restoring zeros.
//   restore   the tmpfs that the supervisor has filled has the file in its root, under a name that
//             ppmr chooses. CRIU creates an empty file, to delete it again. The library puts a
//             link to the filled file in its place. The supervisor removes ppmr's name with its
//             mount.
//
// The library uses a link, because ppmr may try the restore again.
//
// Rejected: to fill CRIU's file from a memory, as the library can for memfds. This takes 0.3 s for
// each GiB, and twice the memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ppmr {

// The image of a deleted file has one of these names, to which CRIU appends a hexadecimal number:
// the first one as CRIU writes it, the second one without the data.
inline constexpr const char* kDeletedFile = "ghost-file-";
inline constexpr const char* kDeletedApart = "ghost-apart-";

// Returns the inode in the image of a deleted file; 0: it has none. `image`: the first bytes of the
// image, at least kDeletedHeadBytes if it has so many. Pure.
inline constexpr size_t kDeletedHeadBytes = 64;
uint64_t inode_in_deleted_image(const unsigned char* image, size_t bytes);

}  // namespace ppmr
