// The differences between the three sides. Every case runs the same calls on tmpfs, on the source
// mount and across both mounts (it writes at the source mount and reads at the target mount). Only
// this table makes a case expect another result.
#pragma once

#include <cerrno>
#include <set>

namespace ppmr::mount_cases {

enum class Side { kTmpfs, kSource, kTarget };

struct Expectations {
  // Calls that tmpfs serves and ppmr refuses: ppmr returns one of `refusals` at once, and the call
  // has no effect.
  bool hard_links;
  bool special_nodes;  // FIFOs, devices and sockets through mknod(2)
  // MAP_SHARED and PROT_WRITE: the stream would not contain the written pages.
  bool shared_mmap;
  bool rename_exchange;  // RENAME_EXCHANGE (EINVAL is also a refusal)
  bool preallocation;    // fallocate(2) with mode 0: a stream cannot reserve space
  bool anonymous_files;  // O_TMPFILE
  std::set<int> refusals;

  // The sides are two mounts. Names that change at the writer appear at the reader after a delay
  // (only close, fsync and commit wait for the target).
  bool reader_is_elsewhere;
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
              .reader_is_elsewhere = false};
    case Side::kSource:
    case Side::kTarget:
      return {.hard_links = false,
              .special_nodes = false,
              .shared_mmap = false,
              .rename_exchange = false,
              .preallocation = false,
              .anonymous_files = false,
              .refusals = {EPERM, EOPNOTSUPP, ENODEV},
              .reader_is_elsewhere = side == Side::kTarget};
  }
  return {};
}

}  // namespace ppmr::mount_cases
