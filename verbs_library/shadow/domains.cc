// Protection domains and memory regions.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "verbs_library/protocol/refusals.h"
#include "verbs_library/shadow/contexts.h"
#include "verbs_library/shadow/creation.h"
#include "verbs_library/shadow/log.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace ppmr::verbs {
namespace {

ibv_mr* register_real(ibv_pd* domain, void* address, size_t length, uint64_t iova,
                      unsigned int access) {
  if (real().ibv_reg_mr_iova2)
    return real().ibv_reg_mr_iova2(domain, address, length, iova, access);
  return real().ibv_reg_mr(domain, address, length, static_cast<int>(access));
}

bool is_taken(const Context& context, const ibv_mr& region) {
  return context.local_keys->is_taken(region.lkey) || context.remote_keys->is_taken(region.rkey);
}

// Registers memory under keys that no moved region of the program has.
ibv_mr* register_under_free_keys(const Context& context, ibv_pd* domain, void* address,
                                 size_t length, uint64_t iova, unsigned int access) {
  std::vector<ibv_mr*> taken;
  ibv_mr* region = nullptr;
  for (int draw = 0; draw < kDrawsMax; ++draw) {
    region = register_real(domain, address, length, iova, access);
    if (!region || !is_taken(context, *region)) break;
    taken.push_back(region);  // occupies its keys, so that the next region gets other keys
    region = nullptr;
  }
  const int error = errno;
  for (ibv_mr* one : taken) real().ibv_dereg_mr(one);
  errno = region || taken.empty() ? error : ENOMEM;
  return region;
}

ibv_mr* register_memory(ibv_pd* seen, void* address, size_t length, uint64_t iova,
                        unsigned int access) {
  if (const char* what = refuse_memory(access)) return refuse(what);
  const Control control;
  Pd& domain = shadow_of(seen);
  if (!domain.real) {
    errno = ENODEV;
    return nullptr;
  }
  ibv_mr* actual =
      register_under_free_keys(*domain.owner, domain.real, address, length, iova, access);
  if (!actual) return nullptr;
  auto* region = new Mr();
  static_cast<ibv_mr&>(*region) = *actual;
  region->context = seen->context;
  region->pd = seen;
  region->owner = domain.owner;
  region->domain = &domain;
  region->real = actual;
  region->access = access;
  region->iova = iova;
  domain.owner->regions.push_back(region);
  return region;
}

}  // namespace

namespace {

struct Pages {
  uintptr_t begin, end;
};

Pages pages_of(const Mr& region) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t address = reinterpret_cast<uintptr_t>(region.addr);
  return {address & ~(page - 1), (address + region.length + page - 1) & ~(page - 1)};
}

std::vector<Pages> mapped_parts_of(const Pages& pages) {
  std::vector<Pages> parts;
  std::ifstream mappings("/proc/self/maps");
  for (std::string line; std::getline(mappings, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    begin = std::max(begin, pages.begin);
    end = std::min(end, pages.end);
    if (begin < end) parts.push_back({begin, end});
  }
  return parts;
}

bool populate(uintptr_t begin, uintptr_t end, int advice) {
  return madvise(reinterpret_cast<void*>(begin), end - begin, advice) == 0;
}

}  // namespace

bool can_show_writes() {
  alignas(4096) static char page[4096];
  return populate(reinterpret_cast<uintptr_t>(page), reinterpret_cast<uintptr_t>(page) + 1,
                  MADV_POPULATE_WRITE);
}

int show_writes(const Mr& region) {
  constexpr unsigned kWrites =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (!can_show_writes())
    return 0;  // the answer to a check says so, and ppmr then copies no rounds
  if (!region.addr || !region.length || (region.access & kWrites) == 0) return 0;
  const Pages pages = pages_of(region);
  if (populate(pages.begin, pages.end, MADV_POPULATE_WRITE)) return 0;
  // The call has ended at a page that the program has unmapped or protected since the registration.
  for (const Pages& part : mapped_parts_of(pages)) {
    if (!populate(part.begin, part.end, MADV_POPULATE_WRITE)) return errno;
  }
  return 0;
}

int make_real_region(Mr& region) {
  // Makes missing pages present before the registration. After a lazy restore pages are missing,
  // and the kernel (6.1) then fails the registration with EFAULT instead of fetching them.
  if (region.addr && region.length) {
    const Pages pages = pages_of(region);
    const bool writes = region.access & IBV_ACCESS_LOCAL_WRITE;
    // This needs Linux 5.14. On an older kernel, the registration may fail.
    populate(pages.begin, pages.end, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  }
  region.real =
      register_real(region.domain->real, region.addr, region.length, region.iova, region.access);
  return region.real ? 0 : errno ? errno : EIO;
}

}  // namespace ppmr::verbs

using namespace ppmr::verbs;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* seen) {
  if (!is_shadow(seen)) return real().ibv_alloc_pd(seen);
  const Control control;
  Context& context = shadow_of(seen);
  ibv_pd* actual = context.real ? real().ibv_alloc_pd(context.real) : nullptr;
  if (!actual) return nullptr;
  auto* domain = new Pd();
  domain->context = seen;
  domain->handle = actual->handle;
  domain->owner = &context;
  domain->real = actual;
  context.domains.push_back(domain);
  return domain;
}

int ibv_dealloc_pd(ibv_pd* seen) {
  if (!is_shadow(seen->context)) return real().ibv_dealloc_pd(seen);
  const Control control;
  Pd* domain = &shadow_of(seen);
  if (domain->real) {
    if (const int error = real().ibv_dealloc_pd(domain->real); error != 0) return error;
  }
  std::erase(domain->owner->domains, domain);
  delete domain;
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  if (!is_shadow(pd->context)) return real().ibv_reg_mr(pd, address, length, access);
  return register_memory(pd, address, length, reinterpret_cast<uint64_t>(address),
                         static_cast<unsigned int>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  if (!is_shadow(pd->context)) return real().ibv_reg_mr_iova(pd, address, length, iova, access);
  return register_memory(pd, address, length, iova, static_cast<unsigned int>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                         unsigned int access) {
  if (!is_shadow(pd->context)) return real().ibv_reg_mr_iova2(pd, address, length, iova, access);
  return register_memory(pd, address, length, iova, access);
}

int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length, int access) {
  if (!is_shadow(mr->context)) return real().ibv_rereg_mr(mr, flags, pd, address, length, access);
  refuse("a changed memory region");
  return IBV_REREG_MR_ERR_INPUT;
}

int ibv_dereg_mr(ibv_mr* mr) {
  if (!is_shadow(mr->context)) return real().ibv_dereg_mr(mr);
  const Control control;
  Mr* region = &shadow_of(mr);
  if (region->real) {
    if (const int error = real().ibv_dereg_mr(region->real); error != 0) return error;
    // A later release does not see this region any more, so this call shows its writes.
    const int error = world().is_tracked ? show_writes(*region) : 0;
    if (error != 0) world().unshown_error = error;
  }
  std::erase(region->owner->regions, region);
  delete region;
  return 0;
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                          int access) {
  if (!is_shadow(pd->context))
    return real().ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
  return refuse("memory of another device (dmabuf)");
}
}
