// Files that hold secrets: read only when nobody else can, written so that nobody else can.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// What all nodes that trust each other have in common: 256 random bits.
using SharedKey = std::array<uint8_t, 32>;

// The content of a small file that belongs to the caller or to root and denies `denied` (mode bits)
// to others. Errors: EPERM where it does not, with what to do about it; those of open(2) and
// read(2); EFBIG.
Result<std::string> read_secret_file(const std::string& path, mode_t denied);

// A key file is one line of 64 hexadecimal digits. It is refused when group or others can do
// anything with it. Errors: as above, EINVAL for other contents.
Result<SharedKey> read_key_file(const std::string& path);

// A new key in a new file, mode 0600. Errors: EEXIST (nothing is ever overwritten), those of
// open(2) and write(2).
Result<SharedKey> create_key_file(const std::string& path);

// Names a key without betraying it: two nodes can compare theirs. 16 hexadecimal digits.
std::string key_id(const SharedKey& key);

}  // namespace ppmr
