#include "restart_loader/pager/borrowed_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "daemon/control/control_client.h"
#include "daemon/control/requests.h"

namespace ppmr {
namespace {

constexpr std::chrono::seconds kTimeout{30};
constexpr std::chrono::seconds kDaemonPatience{2};
constexpr uint64_t kBlockBytes = BlockCipher::kBlockBytes;
static_assert(BorrowedFile::kScratchMinBytes >= kBlockBytes);
alignas(4096) constexpr std::array<std::byte, 64 << 10> kZeros{};

tl::unexpected<Error> malformed(const std::string& what) {
  return failure(
      EPROTO, "borrow a file of the checkpoint: malformed answer of the target's daemon: " + what);
}

bool fits(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

}  // namespace

struct BorrowedFile::Part {
  nlohmann::json answer;
  std::vector<UniqueFd> descriptors;
};

uint64_t BorrowedFile::Spill::blocks() const {
  return (checksums.bytes().size() - sizeof(BlockCipher::Key)) / sizeof(uint32_t);
}

uint32_t BorrowedFile::Spill::checksum_of(uint64_t block) const {
  uint32_t checksum = 0;
  std::memcpy(&checksum,
              checksums.bytes().data() + sizeof(BlockCipher::Key) +
                  (block - first_block) * sizeof(checksum),
              sizeof(checksum));
  return checksum;
}

// Maps each region once, even if many parts are in it.
Result<const std::byte*> BorrowedFile::map_region(const UniqueFd& memfd, uint64_t offset,
                                                  uint64_t length) {
  struct stat status {};
  if (::fstat(memfd.get(), &status) != 0)
    return system_failure("read the size of", "memory that the target's daemon lends");
  auto found = regions_.find(status.st_ino);
  if (found == regions_.end()) {
    auto mapping = MappedFile::map(memfd);
    if (!mapping) return failure(mapping.error());
    found = regions_.emplace(status.st_ino, std::move(*mapping)).first;
  }
  const auto bytes = found->second.bytes();
  if (!fits(offset, length, bytes.size())) return malformed("a piece outside its memory");
  return bytes.data() + offset;
}

// ---- Borrowing ---------------------------------------------------------------------------------

Status BorrowedFile::await_seal(std::chrono::milliseconds timeout) const {
  const nlohmann::json wait =
      to_request(request::Wait{.checkpoint = checkpoint_, .owner = "", .timeout = timeout});
  const auto answer = call(control_socket_, wait, timeout + kDaemonPatience);
  return answer ? accepted(*answer) : failure(answer.error());
}

Status BorrowedFile::borrow_all() {
  for (;;) {
    const auto is_last = borrow_part(/*arrived_only=*/false);
    if (!is_last) return failure(is_last.error());
    if (*is_last) return {};
  }
}

Status BorrowedFile::borrow_arrived() {
  for (;;) {
    const uint64_t before = end_bytes_;
    const auto is_last = borrow_part(/*arrived_only=*/true);
    if (!is_last) return failure(is_last.error());
    if (*is_last || end_bytes_ == before) return {};
  }
}

Result<bool> BorrowedFile::borrow_part(bool arrived_only) {
  const uint64_t offset = end_bytes_;
  ControlCall request;
  const nlohmann::json lend = to_request(request::Lend{.checkpoint = checkpoint_,
                                                       .file = file_,
                                                       .offset = offset,
                                                       .arrived = arrived_only,
                                                       .loan = loan_});
  if (auto sent = request.send(control_socket_, lend, kTimeout); !sent) {
    return failure(sent.error());
  }
  auto answer = request.answer(kTimeout);
  if (!answer) return failure(answer.error());
  if (auto granted = accepted(*answer); !granted) return failure(granted.error());
  try {
    Part part{std::move(*answer), request.descriptors()};
    const uint64_t end = part.answer.at("end");
    const uint64_t size = part.answer.at("size");
    const uint64_t inode = part.answer.at("inode");
    const bool is_first = loan_ < 0;
    if (!is_first && (inode != inode_ || size < offset)) {
      return failure(ESTALE,
                     "borrow '" + checkpoint_ + "/" + file_ + "': it was replaced meanwhile");
    }
    const bool ends = end <= offset && end < size;
    if (end > size || end < offset || (ends && !arrived_only)) {
      return malformed("the part has no end");
    }
    if (is_first) {
      loan_ = part.answer.at("loan");
      if (loan_ < 0 || part.descriptors.empty()) return malformed("no loan");
      loan_end_ = std::move(part.descriptors.back());
      part.descriptors.pop_back();
      inode_ = inode;
    }
    if (auto added = add(std::move(part), size); !added) return failure(added.error());
    end_bytes_ = end;
    return end == size;
  } catch (const nlohmann::json::exception& error) {
    return malformed(error.what());
  }
}

Status BorrowedFile::add(Part part, uint64_t size_bytes) {
  auto& descriptors = part.descriptors;
  WriterLock lock(mutex_);
  size_t spill_place = descriptors.size();  // the answer has no spill file
  if (const auto spill = part.answer.find("spill"); spill != part.answer.end()) {
    spill_place = spill->at("place");
    if (spill_place + 1 >= descriptors.size()) return malformed("no spill file");
    auto checksums = MappedFile::map(descriptors[spill_place + 1]);
    if (!checksums) return failure(checksums.error());
    BlockCipher::Key key;
    if (checksums->bytes().size() < key.size()) return malformed("a spill file without a key");
    std::memcpy(key.data(), checksums->bytes().data(), key.size());
    spills_.push_back({std::move(descriptors[spill_place]), std::move(*checksums),
                       spill->at("first_block"), std::make_shared<const BlockCipher>(key)});
    ::explicit_bzero(key.data(), key.size());
  }
  for (const auto& fields : part.answer.at("pieces")) {
    const uint64_t offset = fields.at(0);
    const uint64_t length = fields.at(1);
    const size_t place = fields.at(2);
    const uint64_t place_offset = fields.at(3);
    if (length == 0 || !fits(offset, length, size_bytes)) return malformed("a piece of no length");
    if (place >= descriptors.size()) return malformed("a piece without memory");
    if (place == spill_place) {
      const Spill& spill = spills_.back();
      if (place_offset > UINT64_MAX - length ||
          place_offset % kBlockBytes != offset % kBlockBytes ||
          place_offset / kBlockBytes < spill.first_block ||
          (place_offset + length - 1) / kBlockBytes - spill.first_block >= spill.blocks()) {
        return malformed("a spilled piece without checksums");
      }
      pieces_[offset] = {length, nullptr, spills_.size() - 1, place_offset};
      continue;
    }
    const auto data = map_region(descriptors[place], place_offset, length);
    if (!data) return failure(data.error());
    pieces_[offset] = {length, *data, 0, 0};
  }
  return {};
}

// ---- Reading -----------------------------------------------------------------------------------

Result<std::span<const std::byte>> BorrowedFile::at(uint64_t offset, uint64_t length_bytes,
                                                    std::span<std::byte> scratch) const {
  const uint64_t end_borrowed = end_bytes_;
  if (offset >= end_borrowed || length_bytes == 0) return std::span<const std::byte>();
  uint64_t end = offset + std::min(length_bytes, end_borrowed - offset);
  ReaderLock lock(mutex_);
  const auto next = pieces_.upper_bound(offset);
  if (next != pieces_.begin()) {
    const auto& [begin, piece] = *std::prev(next);
    if (offset < begin + piece.length) {
      const uint64_t length = std::min(end, begin + piece.length) - offset;
      if (piece.data != nullptr) return std::span(piece.data + (offset - begin), length);
      const Spill& spill = spills_[piece.spill];
      const uint64_t spill_offset = piece.spill_offset + (offset - begin);
      lock.unlock();
      return read_spilled(spill, spill_offset, length, scratch);
    }
  }
  if (next != pieces_.end()) end = std::min(end, next->first);
  return std::span(kZeros).first(std::min<uint64_t>(end - offset, kZeros.size()));
}

// Reads whole blocks, because each checksum covers a whole block.
Result<std::span<const std::byte>> BorrowedFile::read_spilled(const Spill& spill, uint64_t offset,
                                                              uint64_t length_bytes,
                                                              std::span<std::byte> scratch) const {
  const uint64_t first = offset / kBlockBytes;
  const uint64_t last = std::min<uint64_t>((offset + length_bytes - 1) / kBlockBytes,
                                           first + scratch.size() / kBlockBytes - 1);
  if (scratch.size() < kScratchMinBytes) return failure(EINVAL, "scratch is too short");
  const auto damaged = [&](uint64_t at, const std::string& why) {
    return failure(EIO,
                   "read borrowed file on the disk at offset " + std::to_string(at) + ": " + why);
  };
  const auto bytes = scratch.first((last - first + 1) * kBlockBytes);
  for (size_t done = 0; done < bytes.size();) {
    const uint64_t at = first * kBlockBytes + done;
    const ssize_t count =
        ::pread(spill.file.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return damaged(at, std::strerror(errno));
    if (count == 0) return damaged(at, "the file is too short");
    done += static_cast<size_t>(count);
  }
  if (Status decrypted = spill.cipher->decrypt(first, bytes, bytes.data()); !decrypted) {
    return failure(decrypted.error());
  }
  for (uint64_t block = first; block <= last; ++block) {
    if (crc32c(bytes.subspan((block - first) * kBlockBytes, kBlockBytes)) !=
        spill.checksum_of(block)) {
      return damaged(block * kBlockBytes, "checksum mismatch");
    }
  }
  const uint64_t skip = offset - first * kBlockBytes;
  return bytes.subspan(skip, std::min<uint64_t>(length_bytes, bytes.size() - skip));
}

}  // namespace ppmr
