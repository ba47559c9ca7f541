// Files with secrets. ppmr creates them with permissions that protect them, and refuses to read
// files without these.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// 256 random bits that all nodes which trust each other share.
using SharedKey = std::array<uint8_t, 32>;

// The content of a small file that belongs to the caller or to root and has none of the mode bits
// `denied`. Errors: EPERM for any other file (the message says what to do); those of open(2) and
// read(2); EFBIG.
Result<std::string> read_secret_file(const std::string& path, mode_t denied);

// A key file is one line of 64 hexadecimal digits without any permission for group and others.
// Errors: those of read_secret_file(), EINVAL for other contents.
Result<SharedKey> read_key_file(const std::string& path);

// Creates a key in a new file, mode 0600. Errors: EEXIST (an existing file is never overwritten),
// those of open(2) and write(2).
Result<SharedKey> create_key_file(const std::string& path);

// 16 hexadecimal digits that identify a key without revealing it, so that nodes can compare keys.
std::string key_id(const SharedKey& key);

}  // namespace ppmr
