// CRC32C (Castagnoli, RFC 3720 appendix B.4): the checksum of every chunk, frame and spilled block.
// ISA-L uses the processor's instruction. On a processor without it, such as some emulated ones,
// ISA-L computes byte by byte, which is slow but correct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ppmr {

// Returns the checksum of `bytes`. With `previous`, the checksum of the first part of a message, it
// returns the checksum of the message that consists of that part and `bytes`. Threads: any.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t previous = 0);

}  // namespace ppmr
