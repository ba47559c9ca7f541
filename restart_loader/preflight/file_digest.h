// What tells one file from another without sending it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// SHA-256 of everything from the beginning to the end of an open file, in hexadecimal. Errors: what
// read(2) says; EFBIG when there is more than `size_max_bytes`.
Result<std::string> digest_of(int fd, uint64_t size_max_bytes, const std::string& path);

// The build ID that linkers put into programs and libraries (note NT_GNU_BUILD_ID of an ELF file),
// in hexadecimal: what CRIU compares, too. Empty for a file that has none.
std::string build_id_of(int fd);

// Tells the file system of an open file from others, on all nodes that mount it. Empty: unknown.
std::string filesystem_id_of(int fd);

// A type of file system that several nodes mount at once: "nfs4", "lustre".
bool is_network_filesystem(const std::string& type);

}  // namespace ppmr
