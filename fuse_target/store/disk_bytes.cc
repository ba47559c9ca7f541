#include "fuse_target/store/disk_bytes.h"

#include <sys/mman.h>

#include "base/whole_file.h"

namespace ppmr {

Result<UniqueFd> create_checksum_file(const BlockCipher::Key& key,
                                      std::span<const uint32_t> checksums) {
  constexpr const char* kObject = "a memfd for checksums";
  UniqueFd memfd(::memfd_create("ppmr-checksums", MFD_CLOEXEC));
  if (!memfd) return system_failure("create", kObject);
  Status written = write_all(memfd, std::as_bytes(std::span(key)), 0, kObject);
  if (written) written = write_all(memfd, std::as_bytes(checksums), sizeof key, kObject);
  if (!written) return failure(written.error());
  return memfd;
}

}  // namespace ppmr
