// The operator's keys for kept checkpoints: --keep-key names a key file, which `ppmr keygen` makes.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "base/locked.h"
#include "base/result.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

struct KeepKeys {
  std::array<SharedKey, kKeysMax> keys{};
  size_t count = 0;

  // The first key encrypts new checkpoints. All keys decrypt.
  const SharedKey& first() const { return keys[0]; }
  std::span<const SharedKey> all() const { return std::span(keys).first(count); }
};
using LockedKeepKeys = std::shared_ptr<const Locked<KeepKeys>>;

// Errors: those of read_key_file().
Result<LockedKeepKeys> read_keep_keys(const std::string& path);

}  // namespace ppmr
