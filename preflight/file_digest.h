// Compares files on two nodes without sending their content.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"

namespace ppmr {

// Returns the SHA-256 of the whole content of an open file, in hexadecimal. Errors: of pread(2);
// EFBIG when the file is longer than `size_max_bytes`.
Result<std::string> digest_of(int fd, uint64_t size_max_bytes, const std::string& path);

// Returns the SHA-256 of a text, in hexadecimal. Errors: ENOMEM.
Result<std::string> digest_of(const std::string& text);

// Returns the build ID of a program or library (note NT_GNU_BUILD_ID of an ELF file), in
// hexadecimal. CRIU compares build IDs, too. Empty: the file has no build ID.
std::string build_id_of(int fd);

// Returns an identifier of an open file's file system. It is equal on all nodes that mount this
// file system. NFS has no such identifier. For a file on NFS, the result is an identifier of the
// file, which is equal for all clients of the server. Empty: unknown.
std::string filesystem_id_of(int fd);

// Returns whether several nodes can mount file systems of this type at once: "nfs4", "lustre".
bool is_network_filesystem(const std::string& type);

}  // namespace ppmr
