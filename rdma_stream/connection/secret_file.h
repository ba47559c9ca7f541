// Files with secrets. ppmr creates them with permissions that protect them, and refuses to read
// files that lack these permissions.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/open_file.h"
#include "base/result.h"

namespace ppmr {

// 256 random bits that all nodes which trust each other share.
using SharedKey = std::array<uint8_t, 32>;

// Reads a small file that belongs to the caller or to root and has none of the mode bits `denied`.
// Errors: EPERM for any other file (the message says how to correct it); those of open(2) and
// read(2); EFBIG.
Result<std::string> read_secret_file(const std::string& path, mode_t denied,
                                     const OpenFile& open = open_to_read);
// Reads a small file without a check of its owner and mode.
Result<std::string> read_public_file(const std::string& path, const OpenFile& open = open_to_read);

inline constexpr size_t kKeysMax = 2;  // the current key, and the previous or the next key

// Reads a key file. It has one or two lines of 64 hexadecimal digits, and no permission for group
// and others. A node shows the first key to its peers and accepts all keys of the file. Errors:
// those of read_secret_file(), EINVAL for other contents.
Result<std::vector<SharedKey>> read_key_file(const std::string& path,
                                             const OpenFile& open = open_to_read);

// Creates a key in a new file, mode 0600. Errors: EEXIST (an existing file is never overwritten),
// those of open(2) and write(2).
Result<SharedKey> create_key_file(const std::string& path);

// Returns 16 hexadecimal digits that identify a key without revealing it, so that operators can
// compare keys.
std::string key_id(const SharedKey& key);

// Derives a key that only a holder of `key` can compute for this label (HMAC-SHA256, RFC 2104).
SharedKey derive_key(const SharedKey& key, std::string_view label);

}  // namespace ppmr
