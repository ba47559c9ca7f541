#include "verbs_library/shadow/paths.h"

#include <algorithm>
#include <cerrno>

#include "verbs_library/move/datagrams.h"
#include "verbs_library/shadow/contexts.h"
#include "verbs_library/shadow/devices.h"
#include "verbs_library/shadow/log.h"
#include "verbs_library/shadow/send.h"

namespace ppmr::verbs {
namespace {

Gid gid_of(const ibv_ah_attr& attributes) {
  Gid gid = {};
  if (attributes.is_global) std::copy_n(attributes.grh.dgid.raw, gid.size(), gid.begin());
  return gid;
}

}  // namespace

ibv_ah* path_to(Ah& path, const Gid& gid) {
  if (const auto found = path.real.find(gid); found != path.real.end()) return found->second;
  if (!path.domain->real) {
    errno = ENODEV;
    return nullptr;
  }
  ibv_ah_attr wanted = path.attributes;
  if (wanted.is_global) {
    std::copy(gid.begin(), gid.end(), wanted.grh.dgid.raw);
    if (path.shown_gid) {
      const auto own = choose_gid(*path.shown_gid, read_gids(path.owner->real, wanted.port_num));
      if (own) wanted.grh.sgid_index = static_cast<uint8_t>(own->index);
    }
  }
  ibv_ah* made = real().ibv_create_ah(path.domain->real, &wanted);
  if (made) path.real[gid] = made;
  return made;
}

int destroy_real_paths(Ah& path) {
  int first = 0;
  for (const auto& [gid, made] : path.real) {
    const int error = real().ibv_destroy_ah(made);
    if (first == 0) first = error;
  }
  path.real.clear();
  return first;
}

}  // namespace ppmr::verbs

using namespace ppmr::verbs;

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* wanted) {
  if (!is_shadow(pd->context)) return real().ibv_create_ah(pd, wanted);
  const Control control;
  Pd& domain = shadow_of(pd);
  auto* path = new Ah();
  path->context = pd->context;
  path->pd = pd;
  path->owner = domain.owner;
  path->domain = &domain;
  path->attributes = *wanted;
  if (wanted->is_global && domain.owner->real) {
    for (const GidEntry& entry : read_gids(domain.owner->real, wanted->port_num)) {
      if (entry.index == wanted->grh.sgid_index) path->shown_gid = entry;
    }
  }
  const ibv_ah* made = path_to(*path, gid_of(*wanted));
  if (!made) {
    const int error = errno;
    delete path;
    errno = error;
    return nullptr;
  }
  path->handle = made->handle;
  domain.owner->paths.push_back(path);
  doubt_targets(*domain.owner, gid_of(*wanted));
  return path;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* completion, ibv_grh* header, uint8_t port) {
  if (!is_shadow(pd->context)) return real().ibv_create_ah_from_wc(pd, completion, header, port);
  ibv_ah_attr attributes = {};
  if (ibv_init_ah_from_wc(pd->context, port, completion, header, &attributes) != 0) return nullptr;
  return ibv_create_ah(pd, &attributes);
}

int ibv_destroy_ah(ibv_ah* seen) {
  if (!is_shadow(seen->context)) return real().ibv_destroy_ah(seen);
  const Control control;
  Ah* path = &shadow_of(seen);
  for (Qp* qp : path->owner->queue_pairs) forget_path(*qp, path);
  if (const int error = destroy_real_paths(*path); error != 0)
    log("destroy an address handle: errno %d", error);
  std::erase(path->owner->paths, path);
  delete path;
  return 0;
}
}
