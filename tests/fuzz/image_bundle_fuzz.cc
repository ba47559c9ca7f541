// Fuzzes bundles of small images, which a restore takes from the target's daemon.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mount/image_bundle.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  const ppmr::UniqueFd memfd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::write(memfd.get(), input.data(), input.size()) == static_cast<ssize_t>(input.size()));
  ::fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  const auto bundle = ppmr::ImageBundle::open(memfd);
  if (!bundle) return;
  size_t bytes = 0;
  for (const auto& [name, content] : bundle->included()) {
    REQUIRE(name.find('/') == std::string_view::npos && !bundle->left_out().contains(name));
    bytes += name.size() + content.size();
  }
  REQUIRE(bytes <= input.size());
}
