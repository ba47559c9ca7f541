#include "fuse_target/keep/keep_keys.h"

#include <string.h>

#include <algorithm>

namespace ppmr {

Result<LockedKeepKeys> read_keep_keys(const std::string& path) {
  auto read = read_key_file(path);
  if (!read) return failure(read.error());
  const auto keys = std::make_shared<Locked<KeepKeys>>();
  (*keys)->count = std::min(read->size(), (*keys)->keys.size());
  std::copy_n(read->begin(), (*keys)->count, (*keys)->keys.begin());
  ::explicit_bzero(read->data(), read->size() * sizeof(SharedKey));
  return keys;
}

}  // namespace ppmr
