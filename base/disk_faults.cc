#include "base/disk_faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

namespace {

struct Fault {
  std::vector<std::string> names;
  int error = 0;
  size_t next = 0;
  dirent entry{};
};
std::optional<Fault> fault;

}  // namespace

// Replaces the function of the C library.
extern "C" dirent* readdir(DIR* directory) {
  using Readdir = dirent* (*)(DIR*);
  static const auto real = reinterpret_cast<Readdir>(::dlsym(RTLD_NEXT, "readdir"));
  if (!fault) return real(directory);
  if (fault->next < fault->names.size()) {
    fault->entry.d_type = DT_UNKNOWN;
    std::strncpy(fault->entry.d_name, fault->names[fault->next++].c_str(),
                 sizeof(fault->entry.d_name) - 1);
    return &fault->entry;
  }
  if (fault->error != 0) errno = std::exchange(fault->error, 0);
  return nullptr;
}

namespace ppmr {

ReaddirFault::ReaddirFault(std::vector<std::string> names, int error) {
  fault = Fault{.names = std::move(names), .error = error};
}
ReaddirFault::~ReaddirFault() { fault.reset(); }

FileSizeLimit::FileSizeLimit(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);  // it would end the process
  [[maybe_unused]] int done = ::getrlimit(RLIMIT_FSIZE, &before_);
  assert(done == 0);
  const rlimit limit{bytes, before_.rlim_max};
  done = ::setrlimit(RLIMIT_FSIZE, &limit);
  assert(done == 0);
}
FileSizeLimit::~FileSizeLimit() { (void)::setrlimit(RLIMIT_FSIZE, &before_); }

}  // namespace ppmr
