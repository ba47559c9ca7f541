#include "restart_loader/criu/criu_library.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>

#include "base/whole_file.h"
#include "restart_loader/criu/library_environment.h"
#include "restart_loader/criu/memory_apart.h"

namespace ppmr {

extern const unsigned char kCriuLibrary[];
extern const size_t kCriuLibraryBytes;

namespace {

// Like kPageClient (lazy_dump.cc), this descriptor is free in CRIU, and below those that it
// reserves.
constexpr int kLibrary = 61;

}  // namespace

Status preload_criu_library(PageList list, const std::string& work_directory) {
  // The library removes the variables, because the programs that CRIU starts do not need them.
  if (std::getenv(kPreload) != nullptr) return {};
  const char* const what = "the library for CRIU";
  // The library is in memory, because CRIU may run in a mount namespace without the files of ppmr.
  const UniqueFd memory(memfd_create("ppmr-criu-library", MFD_CLOEXEC));
  if (!memory) return system_failure("create", what);
  const auto bytes = std::as_bytes(std::span(kCriuLibrary, kCriuLibraryBytes));
  if (Status written = write_all(memory, bytes, 0, what); !written) return written;
  // dup2() clears the close-on-exec flag.
  if (dup2(memory.get(), kLibrary) < 0) return system_failure("pass", what);
  const std::string library = "/proc/self/fd/" + std::to_string(kLibrary);
  if (setenv(kPreload, library.c_str(), 1) != 0)
    return system_failure("set the environment variable", kPreload);
  const char* const hides = list == PageList::kOfPpmr ? "1" : "0";
  if (setenv(kHidesMemory, hides, 1) != 0)
    return system_failure("set the environment variable", kHidesMemory);
  if (work_directory.empty()) return {};
  const std::string apart = work_directory + "/" + kMemoryApart;
  if (setenv(kMemoryApartList, apart.c_str(), 1) != 0) {
    return system_failure("set the environment variable", kMemoryApartList);
  }
  const std::string inherited = work_directory + "/" + kInherited;
  if (setenv(kInheritedFile, inherited.c_str(), 1) != 0) {
    return system_failure("set the environment variable", kInheritedFile);
  }
  return {};
}

}  // namespace ppmr
