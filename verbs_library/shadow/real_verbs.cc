#include "verbs_library/shadow/real_verbs.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "verbs_library/shadow/made_once.h"

namespace ppmr::verbs {
namespace {

void* find(void* library, const char* name, const char* version) {
  void* found = dlvsym(library, name, version);
  return found ? found : dlsym(library, name);
}

RealVerbs load() {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    std::fprintf(stderr, "libppmr-verbs: load libibverbs.so.1: %s\n", dlerror());
    std::abort();
  }
  RealVerbs found;
#define PPMR_FIND(name, version) \
  found.name = reinterpret_cast<decltype(found.name)>(find(library, #name, version));
  PPMR_REAL_VERBS(PPMR_FIND)
#undef PPMR_FIND
  return found;
}

}  // namespace

const RealVerbs& real() {
  static std::atomic<const RealVerbs*> found{nullptr};
  return made_once(found, [] { return new const RealVerbs(load()); });
}

}  // namespace ppmr::verbs
