#include "fuse_source/memory_transfers.h"

#include <algorithm>

namespace ppmr {
namespace {

// The number of wants that are kept for transfers that have not begun. A further want replaces the
// oldest one.
constexpr size_t kEarlyWantsMax = 4096;

}  // namespace

void MemoryTransfers::Transfer::want(const wire::Want& want) const {
  // Earlier transfers have sent the bytes before `file_offset`.
  const uint64_t skipped =
      std::min(want.length_bytes, file_offset - std::min(file_offset, want.offset));
  if (want.length_bytes > skipped) {
    blocks->want(want.offset + skipped - file_offset, want.length_bytes - skipped);
  }
}

Status MemoryTransfers::begin(uint64_t node, WantedBlocks& blocks, uint64_t file_offset) {
  MutexLock lock(mutex_);
  const Transfer transfer{&blocks, file_offset};
  if (!transfers_.emplace(node, transfer).second) {
    return failure(EBUSY, "send memory: another request sends memory to the same file");
  }
  std::erase_if(early_wants_, [&](const wire::Want& early) {
    if (early.node != node) return false;
    transfer.want(early);
    return true;
  });
  return {};
}

void MemoryTransfers::end(uint64_t node) {
  MutexLock lock(mutex_);
  transfers_.erase(node);
}

void MemoryTransfers::want(const wire::Want& want, const std::function<bool()>& may_begin) {
  MutexLock lock(mutex_);
  if (const auto found = transfers_.find(want.node); found != transfers_.end()) {
    found->second.want(want);
    return;
  }
  if (!may_begin()) return;
  if (early_wants_.size() == kEarlyWantsMax) early_wants_.pop_front();
  early_wants_.push_back(want);
}

std::optional<uint64_t> MemoryTransfers::taken_bytes(uint64_t node) {
  MutexLock lock(mutex_);
  const auto found = transfers_.find(node);
  if (found == transfers_.end()) return std::nullopt;
  return found->second.file_offset + found->second.blocks->taken_bytes();
}

bool MemoryTransfers::may_reserve(size_t slot_count) {
  const bool may = 2 * ++reserves_ <= slot_count;
  if (!may) --reserves_;
  return may;
}

}  // namespace ppmr
