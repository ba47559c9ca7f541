// The reads in flight on one connection. A pull is split into several reads if the device limits
// the pieces or bytes of one read.
//
// Each pull occupies one of the window's entries. The id of a read contains the number of its pull,
// which is never reused (48 bits), the index of the entry (8 bits), and the number of the read
// within the pull (8 bits). So the window recognises a completion that is late, duplicated or of an
// unknown read.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "rdma_stream/mover/mover.h"
#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// Threads: one. Allocates no memory after construction.
class ReadWindow {
 public:
  // The largest number of pulls and bytes in flight. It keeps a 100 Gb/s link with a round trip of
  // 100 us busy, and an urgent pull does not wait long behind the others.
  static constexpr size_t kPullsMax = 16;
  static constexpr uint64_t kBytesMax = 4 << 20;
  // The largest number of RDMA READs of one pull. A device may need one READ for each piece of
  // memory in which the chunk lands, and several for a piece longer than read_bytes_max.
  static constexpr size_t kPartsMax = 32;
  static constexpr uint32_t kWorksMax = 64;  // RDMA READs in flight on one connection; > kPartsMax

  enum class Outcome { kUnknown, kPart, kWhole };

  bool empty() const { return pulls_ == 0; }
  // Returns whether a pull fits, with any number of reads.
  bool has_room(const ReadLimits& limits) const {
    return pulls_ < kPullsMax && bytes_ < kBytesMax && works_ + kPartsMax <= limits.works_max;
  }
  // Adds the pull and passes its reads to `post(const ReadWork&)`, which returns a Status. The
  // first piece is read from `peer_address`; `keys` are the local keys of the pieces, in their
  // order. After an error some reads may be in flight. Requires has_room(). Errors: those of
  // `post`; EMSGSIZE for more than kPartsMax reads.
  template <typename Post>
  Status add(const Pull& pull, std::span<const uint32_t> keys, uint64_t peer_address,
             uint32_t peer_key, const ReadLimits& limits, Post post);
  // kWhole: the pull is complete and has left the window; `pull` is set.
  Outcome complete(uint64_t id, Pull& pull);
  // Call after the connection has ended: moves one of the pulls from the window to `pull`. Returns
  // false if the window is empty.
  bool give_back(Pull& pull);

 private:
  struct Entry {
    Pull pull;
    uint64_t use = 0;    // 0: the entry is free
    uint32_t parts = 0;  // bit i: part i is in flight
  };
  static uint64_t id_of(uint64_t use, size_t place, uint32_t part) {
    return (use << 16) | (uint64_t{place} << 8) | part;
  }
  void free(Entry& entry);

  std::array<Entry, kPullsMax> entries_;
  uint64_t last_use_ = 0;
  size_t pulls_ = 0;
  uint64_t bytes_ = 0;
  uint32_t works_ = 0;
};

template <typename Post>
Status ReadWindow::add(const Pull& pull, std::span<const uint32_t> keys, uint64_t peer_address,
                       uint32_t peer_key, const ReadLimits& limits, Post post) {
  size_t place = 0;
  while (entries_[place].use != 0) ++place;
  Entry& entry = entries_[place];
  entry = {pull, ++last_use_, 0};
  ++pulls_;
  bytes_ += pull.length;

  std::array<ReadWork::Piece, Landing::kPiecesMax> pieces;
  uint32_t part = 0;
  size_t piece = 0;         // number of the next piece to post
  uint32_t piece_done = 0;  // bytes of the next piece that are already posted
  uint32_t left = pull.length;
  while (left > 0) {
    if (part == kPartsMax) return failure(EMSGSIZE, "a chunk has too many pieces for this device");
    size_t count = 0;
    uint64_t bytes = 0;
    while (left > 0 && count < std::min<size_t>(limits.pieces_max, pieces.size()) &&
           bytes < limits.read_bytes_max) {
      const Landing::Piece& whole = pull.pieces[piece];
      const auto length = static_cast<uint32_t>(
          std::min<uint64_t>({whole.length - piece_done, limits.read_bytes_max - bytes, left}));
      pieces[count++] = {whole.data + piece_done, length, keys[piece]};
      bytes += length;
      left -= length;
      piece_done += length;
      if (piece_done < whole.length) break;
      ++piece;
      piece_done = 0;
    }
    entry.parts |= uint32_t{1} << part;
    ++works_;
    const ReadWork work{id_of(entry.use, place, part), peer_address, peer_key,
                        std::span<const ReadWork::Piece>(pieces).first(count)};
    if (Status posted = post(work); !posted) return posted;
    peer_address += bytes;
    ++part;
  }
  return {};
}

}  // namespace ppmr
