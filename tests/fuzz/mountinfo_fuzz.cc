// Fuzzes /proc/self/mountinfo. Users choose the names of mount points and of file systems in it.
#include "mount/mount_table.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  for (const ppmr::MountEntry& mount : ppmr::parse_mountinfo(text_of(input))) {
    REQUIRE(mount.is_ppmr() == (mount.type == "fuse.ppmr"));
  }
}
