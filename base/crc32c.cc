#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <climits>

namespace ppmr {

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous) {
  // crc32_iscsi() takes a length of type int and leaves the initial and final inversion to its
  // caller.
  uint32_t register_value = ~previous;
  while (!bytes.empty()) {
    const size_t length = std::min<size_t>(bytes.size(), INT_MAX);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    register_value = crc32_iscsi(data, static_cast<int>(length), register_value);
    bytes = bytes.subspan(length);
  }
  return ~register_value;
}

}  // namespace ppmr
