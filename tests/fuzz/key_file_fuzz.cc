// Fuzzes key files.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rdma_stream/connection/secret_file.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  static const int file = [] {
    const int fd = memfd_create("key", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && fchmod(fd, 0600) == 0);
    return fd;
  }();
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  REQUIRE(ftruncate(file, 0) == 0);
  REQUIRE(pwrite(file, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  const auto keys = read_key_file(path);
  if (!keys) return;
  REQUIRE(keys->size() == 1 || keys->size() == 2);
  for (const SharedKey& key : *keys) REQUIRE(key_id(key).size() == 16);
}
