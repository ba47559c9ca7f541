// The digest of a page that was sent, by which a later round notices that the page has changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ppmr {

constexpr size_t kFilePageBytes = 4096;
// The digest of a page that is a hole of its file. No page of data has it.
constexpr uint64_t kHole = 0;
// The digest of a page whose content at the target is unknown. No page of data has it.
constexpr uint64_t kUnknownPage = 1;

// Returns the CRC-64 (ECMA-182) of a page. ISA-L computes it faster than memory delivers the bytes.
// `page`: at most kFilePageBytes; missing bytes count as zeros. A program could make two pages with
// the same digest, but would harm only its own files. Threads: any.
uint64_t page_digest(std::span<const std::byte> page);

}  // namespace ppmr
