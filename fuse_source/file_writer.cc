#include "fuse_source/file_writer.h"

#include <cstring>
#include <utility>

namespace ppmr {
namespace {

// A write of at least 1/kAdoptPart of a slot becomes a chunk of its own, because gathering it with
// other writes would cost a copy.
constexpr size_t kAdoptPart = 4;

}  // namespace

bool FileWriter::append(std::span<const std::byte> bytes, uint64_t offset, CutChunks& cut) {
  MutexLock lock(mutex_);
  if (!gathered_ || gathered_->offset + gathered_->length != offset) return false;
  const auto room = gathered_->lease.payload().subspan(gathered_->slot_offset + gathered_->length);
  if (bytes.size() > room.size()) return false;
  std::memcpy(room.data(), bytes.data(), bytes.size());
  gathered_->length += static_cast<uint32_t>(bytes.size());
  gathered_->last_write = std::chrono::steady_clock::now();
  size_bytes_ = std::max(size_bytes_, offset + bytes.size());
  if (bytes.size() == room.size()) cut_locked(cut);
  return true;
}

bool FileWriter::adopt(SlotLease lease, std::span<const std::byte> bytes, uint64_t offset,
                       CutChunks& cut) {
  const auto payload = lease.payload();
  const auto slot_offset = static_cast<uint32_t>(bytes.data() - payload.data());
  const auto length = static_cast<uint32_t>(bytes.size());
  MutexLock lock(mutex_);
  if (gathered_) cut_locked(cut);
  size_bytes_ = std::max(size_bytes_, offset + bytes.size());
  if (bytes.size() * kAdoptPart >= payload.size()) {
    cut.add(stream_->cut(std::move(lease), slot_offset, length, offset));
    return false;
  }
  gathered_ =
      Gathered{std::move(lease), slot_offset, length, offset, std::chrono::steady_clock::now()};
  return !std::exchange(watched_, true);
}

Chunk FileWriter::cut_apart(SlotLease lease, std::span<const std::byte> bytes, uint64_t offset) {
  const auto slot_offset = static_cast<uint32_t>(bytes.data() - lease.payload().data());
  MutexLock lock(mutex_);
  size_bytes_ = std::max(size_bytes_, offset + bytes.size());
  Chunk chunk =
      stream_->cut(std::move(lease), slot_offset, static_cast<uint32_t>(bytes.size()), offset);
  chunk.apart = true;
  return chunk;
}

void FileWriter::cut_locked(CutChunks& cut) {
  cut.add(stream_->cut(std::move(gathered_->lease), gathered_->slot_offset, gathered_->length,
                       gathered_->offset));
  gathered_.reset();
}

void FileWriter::flush() {
  CutChunks cut;
  {
    MutexLock lock(mutex_);
    if (gathered_) cut_locked(cut);
  }
  cut.announce(*outlet_);
}

bool FileWriter::flush_if_quiet(std::chrono::microseconds quiet) {
  CutChunks cut;
  {
    MutexLock lock(mutex_);
    if (gathered_ && std::chrono::steady_clock::now() - gathered_->last_write < quiet) return false;
    watched_ = false;
    if (gathered_) cut_locked(cut);
  }
  cut.announce(*outlet_);
  return true;
}

Status FileWriter::drain(const Interrupted& interrupted) {
  flush();
  outlet_->push();
  return stream_->drain(interrupted);
}

uint64_t FileWriter::size_bytes() const {
  MutexLock lock(mutex_);
  return size_bytes_;
}

void FileWriter::set_size_bytes(uint64_t size_bytes) {
  MutexLock lock(mutex_);
  size_bytes_ = size_bytes;
}

}  // namespace ppmr
