#include "restart_loader/criu/cheap_reservations.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <span>
#include <string>

#include "base/unique_fd.h"

namespace ppmr {

extern const unsigned char kCheapReservationsLibrary[];
extern const size_t kCheapReservationsLibraryBytes;

namespace {

// As kPageClient (lazy_dump.cc): free in CRIU, and below the descriptors that it reserves.
constexpr int kLibrary = 61;
constexpr const char* kPreload = "LD_PRELOAD";

}  // namespace

Status preload_cheap_reservations() {
  // The library removes the variable, because the programs that CRIU starts do not need it.
  if (std::getenv(kPreload) != nullptr) return {};
  const char* const what = "CRIU's library for reserved address space";
  // In memory: CRIU may run in a mount namespace in which no file of ppmr is visible.
  const UniqueFd memory(memfd_create("ppmr-cheap-reservations", MFD_CLOEXEC));
  if (!memory) return system_failure("create", what);
  std::span<const unsigned char> rest(kCheapReservationsLibrary, kCheapReservationsLibraryBytes);
  while (!rest.empty()) {
    const ssize_t n = write(memory.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_failure("write", what);
    rest = rest.subspan(static_cast<size_t>(n));
  }
  // dup2() clears the close-on-exec flag.
  if (dup2(memory.get(), kLibrary) < 0) return system_failure("pass", what);
  const std::string library = "/proc/self/fd/" + std::to_string(kLibrary);
  if (setenv(kPreload, library.c_str(), 1) != 0) return system_failure("set", kPreload);
  return {};
}

}  // namespace ppmr
