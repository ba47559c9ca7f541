// Rebuilds the shared memory of a tree from unchecked records (file_archive.h): one memfd for each
// memory. The restored processes get these memfds, so the restore copies nothing.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/files/file_archive.h"

namespace ppmr {

// A shared memory, and its inode at the source.
struct BuiltSegment {
  uint64_t inode = 0;
  UniqueFd memfd;
};

// Threads: one.
class SegmentBuilder {
 public:
  Status on(const file_record::Segment& segment);
  Status on(const file_record::Size& size);
  Status on(const file_record::Data& data);
  Status on(const file_record::Hole& hole);
  Status on(const file_record::Drop& drop);

  // Returns all memories. Call it after the last record.
  std::vector<BuiltSegment> take();

 private:
  Result<int> find(uint64_t number) const;

  std::map<uint64_t, BuiltSegment> built_;  // key: number of the file
};

}  // namespace ppmr
