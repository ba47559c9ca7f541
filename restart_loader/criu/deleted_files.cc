#include "restart_loader/criu/deleted_files.h"

namespace ppmr {
namespace {

constexpr size_t kMagicBytes = 8;   // two numbers
constexpr size_t kLengthBytes = 4;  // the length of the message that follows
constexpr uint64_t kInodeField = 5;
constexpr unsigned kVarintBitsMax = 63;

struct Bytes {
  const unsigned char* at;
  const unsigned char* end;

  // Returns false at the end, and for a number that is too large.
  bool take_varint(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; at < end && shift <= kVarintBitsMax; shift += 7) {
      const unsigned char byte = *at++;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
};

}  // namespace

// ghost_file_entry of criu/images/ghost-file.proto: uid, gid, mode, dev, ino, all of them varints.
uint64_t inode_in_deleted_image(const unsigned char* image, size_t bytes) {
  if (bytes < kMagicBytes + kLengthBytes) return 0;
  Bytes rest{image + kMagicBytes + kLengthBytes, image + bytes};
  uint64_t tag = 0;
  uint64_t value = 0;
  while (rest.take_varint(tag) && (tag & 7) == 0 && rest.take_varint(value)) {
    if (tag >> 3 == kInodeField) return value;
  }
  return 0;
}

}  // namespace ppmr
