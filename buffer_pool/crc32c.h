// CRC32C (Castagnoli, RFC 3720 appendix B.4): the checksum of every chunk and every frame. By ISA-L
// with the processor's instruction, by crcutil on one that has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ppmr {

// The checksum of `bytes`, continuing from `previous` (the checksum of what came before them).
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);

// The same without the instruction; for tests.
uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t previous = 0);

}  // namespace ppmr
