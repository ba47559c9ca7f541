// Shared memory that travels apart from CRIU's images (migration/source/file_parts.h). Deleted
// files of a tmpfs also travel apart, in another way (deleted_files.h).
//
//   dump      a list has the memories that ppmr has sent. CRIU looks for their data, and the
//             library finds none. The image that lists their pages gets another name: a CRIU
//             without the library misses it and fails, instead of restoring zeros.
//   restore   CRIU makes an empty memory and opens the list of its pages. The library finds the
//             other name, and puts the memory that the supervisor has filled in its place.
//
// CRIU restores in processes that have closed all descriptors of their parent and may have another
// /proc. So the library maps each memory before CRIU creates these processes: they inherit the
// mapping, and open it as /proc/self/map_files/RANGE in a /proc of their own. CRIU unmaps all at
// the end.
//
// Rejected: to copy the pages into CRIU's memory, which takes 0.3 s for each GiB; to give the
// processes a file of a tmpfs, which CRIU could not dump again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ppmr {

// In the work directory of CRIU. A dump: a line "INODE" for each memory that is left out, "INODE
// DEVICE" for each deleted file (deleted_files.h). A restore: a line "INODE PATH" for each memory
// that is filled; PATH is a descriptor, /proc/PID/fd/N.
inline constexpr const char* kMemoryApart = "memory-apart";

// The first part of the name of the image that lists the pages of a shared memory. The inode
// follows. CRIU uses the first name. The library uses the second one for memory that travels apart.
inline constexpr const char* kPagesOfShared = "pagemap-shmem-";
inline constexpr const char* kPagesApart = "pagemap-apart-";

// Returns the number in PREFIX NUMBER ".img"; 0: the name has another form. Pure.
uint64_t number_in_image_name(const char* name, const char* prefix);

// A line of the list.
struct MemoryApartLine {
  uint64_t inode = 0;
  uint64_t device = 0;         // 0: none
  const char* path = nullptr;  // null: none
};
// Reads the first line and moves `text` behind it. Replaces the end of the line by '\0'. Returns
// false at the end, and for a malformed line. Pure.
bool next_memory_apart(char*& text, MemoryApartLine& line);

}  // namespace ppmr
