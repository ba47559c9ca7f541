#include "processes/files/page_digest.h"

#include <isa-l/crc64.h>

#include <algorithm>
#include <array>

namespace ppmr {

uint64_t page_digest(std::span<const std::byte> page) {
  static constexpr std::array<unsigned char, kFilePageBytes> kZeros{};
  const auto* const bytes = reinterpret_cast<const unsigned char*>(page.data());
  uint64_t digest = crc64_ecma_refl(0, bytes, page.size());
  if (page.size() < kFilePageBytes) {
    digest = crc64_ecma_refl(digest, kZeros.data(), kFilePageBytes - page.size());
  }
  return std::max<uint64_t>(digest, kUnknownPage + 1);
}

}  // namespace ppmr
