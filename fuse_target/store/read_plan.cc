#include "fuse_target/store/read_plan.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ppmr {
namespace {

constexpr size_t kBuffersMax = 1000;  // IOV_MAX, minus the buffers that libfuse adds
alignas(4096) constexpr std::array<std::byte, 64 << 10> kZeros{};

}  // namespace

void ReadPlan::add_block(const BlockRef& block, size_t offset_in_block, size_t length) {
  blocks_.push_back(block);
  buffers_.push_back({block.bytes().data() + offset_in_block, length});
  size_bytes_ += length;
}

void ReadPlan::add_zeros(size_t length) {
  size_bytes_ += length;
  while (length > 0) {
    const size_t part = std::min(length, kZeros.size());
    buffers_.push_back({const_cast<std::byte*>(kZeros.data()), part});  // the reply only reads it
    length -= part;
  }
}

void ReadPlan::add_spilled(const std::shared_ptr<const DiskBytes>& file, uint64_t offset,
                           size_t length) {
  spill_file_ = file;
  spilled_.push_back({buffers_.size(), offset});
  buffers_.push_back({nullptr, length});
  size_bytes_ += length;
}

void ReadPlan::clear() {
  buffers_.clear();
  blocks_.clear();
  spilled_.clear();
  spill_file_.reset();
  size_bytes_ = 0;
}

Status ReadPlan::make_ready() {
  const bool too_many = buffers_.size() > kBuffersMax;
  if (spilled_.empty() && !too_many) return {};
  copied_.resize(size_bytes_);
  std::byte* at = copied_.data();
  for (const Spilled& part : spilled_) {
    iovec& buffer = buffers_[part.buffer];
    buffer.iov_base = at;
    if (auto read = spill_file_->read(part.offset, {at, buffer.iov_len}); !read) return read;
    at += buffer.iov_len;
  }
  if (!too_many) return {};
  std::vector<std::byte> whole(size_bytes_);
  at = whole.data();
  for (const iovec& buffer : buffers_) {
    std::memcpy(at, buffer.iov_base, buffer.iov_len);
    at += buffer.iov_len;
  }
  copied_.swap(whole);
  buffers_.assign(1, {copied_.data(), copied_.size()});
  return {};
}

}  // namespace ppmr
