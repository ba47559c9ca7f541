#include "processes/files/segment_builder.h"

#include <sys/mman.h>

#include "processes/files/built_content.h"

namespace ppmr {

Status SegmentBuilder::on(const file_record::Segment& segment) {
  if (built_.size() == kSegmentsMax || built_.contains(segment.file)) {
    return failure(EPROTO,
                   "build the shared memory: a segment begins twice, or there are more than " +
                       std::to_string(kSegmentsMax));
  }
  for (const auto& [number, built] : built_) {
    if (built.inode == segment.inode) {
      return failure(EPROTO, "build the shared memory: a segment begins twice");
    }
  }
  // CRIU adds the seals of the original when it restores the memory.
  UniqueFd memfd(memfd_create(segment.name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd) return write_failure("create the shared memory", segment.name);
  built_.emplace(segment.file, BuiltSegment{segment.inode, std::move(memfd)});
  return {};
}

Result<int> SegmentBuilder::find(uint64_t number) const {
  const auto found = built_.find(number);
  if (found == built_.end())
    return failure(EPROTO,
                   "build the shared memory: a record belongs to a segment that has not begun");
  return found->second.memfd.get();
}

Status SegmentBuilder::on(const file_record::Size& size) {
  const auto file = find(size.file);
  return file ? apply_content(size, *file) : failure(file.error());
}

Status SegmentBuilder::on(const file_record::Data& data) {
  const auto file = find(data.file);
  return file ? apply_content(data, *file) : failure(file.error());
}

Status SegmentBuilder::on(const file_record::Hole& hole) {
  const auto file = find(hole.file);
  return file ? apply_content(hole, *file) : failure(file.error());
}

Status SegmentBuilder::on(const file_record::Drop& drop) {
  const auto file = find(drop.file);
  if (!file) return failure(file.error());
  built_.erase(drop.file);
  return {};
}

std::vector<BuiltSegment> SegmentBuilder::take() {
  std::vector<BuiltSegment> all;
  for (auto& [number, built] : built_) all.push_back(std::move(built));
  built_.clear();
  return all;
}

}  // namespace ppmr
