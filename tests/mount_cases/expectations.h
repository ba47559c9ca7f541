// Where the three sides differ, and nowhere else: every case runs the same calls on tmpfs, on the
// source mount and across (written at the source mount, read at the target mount). A row here is
// the only way for a case to expect something else.
#pragma once

#include <cerrno>
#include <set>

namespace ppmr::mount_cases {

enum class Side { kTmpfs, kSource, kTarget };

struct Expectations {
  // Calls that tmpfs serves and ppmr refuses; the refusal must be one of `refusals`, at once, and
  // leave nothing behind.
  bool hard_links;
  bool special_nodes;    // fifo, device, socket through mknod(2)
  bool shared_mmap;      // MAP_SHARED and PROT_WRITE: pages dirtied behind the back of the stream
  bool rename_exchange;  // RENAME_EXCHANGE (EINVAL is a refusal, too)
  bool preallocation;    // fallocate(2) with mode 0; a stream has nothing to set aside
  bool anonymous_files;  // O_TMPFILE
  std::set<int> refusals;

  // The mounts are not the same directory: what was changed at the writer is looked for at the
  // reader, with patience for names (only close, fsync and commit wait for the target).
  bool reader_is_elsewhere;
  // The read side takes no writes (EROFS, EACCES or EPERM) and lets a reader wait for bytes under
  // way.
  bool reader_is_read_only;
};

inline Expectations expectations_of(Side side) {
  switch (side) {
    case Side::kTmpfs:
      return {.hard_links = true,
              .special_nodes = true,
              .shared_mmap = true,
              .rename_exchange = true,
              .preallocation = true,
              .anonymous_files = true,
              .refusals = {},
              .reader_is_elsewhere = false,
              .reader_is_read_only = false};
    case Side::kSource:
    case Side::kTarget:
      return {.hard_links = false,
              .special_nodes = false,
              .shared_mmap = false,
              .rename_exchange = false,
              .preallocation = false,
              .anonymous_files = false,
              .refusals = {EPERM, EOPNOTSUPP, ENODEV},
              .reader_is_elsewhere = side == Side::kTarget,
              .reader_is_read_only = side == Side::kTarget};
  }
  return {};
}

}  // namespace ppmr::mount_cases
