// Functions for objects that cannot move. They refuse, so that libraries fall back to other
// functions. For real objects they do the same as libibverbs.
#include <cerrno>

#include "verbs_library/shadow/contexts.h"

using namespace ppmr::verbs;

extern "C" {

int ibv_attach_mcast(ibv_qp* qp, const union ibv_gid* gid, uint16_t lid) {
  if (!is_shadow(qp->context)) return real().ibv_attach_mcast(qp, gid, lid);
  refuse("a multicast group");
  return EOPNOTSUPP;
}

int ibv_detach_mcast(ibv_qp* qp, const union ibv_gid* gid, uint16_t lid) {
  return is_shadow(qp->context) ? EOPNOTSUPP : real().ibv_detach_mcast(qp, gid, lid);
}

int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (!is_shadow(qp->context)) return real().ibv_set_ece(qp, ece);
  refuse("enhanced connection establishment");
  return EOPNOTSUPP;
}

int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  return is_shadow(qp->context) ? EOPNOTSUPP : real().ibv_query_ece(qp, ece);
}

ibv_context* ibv_import_device(int) { return refuse("an imported device"); }

ibv_mr* ibv_import_mr(ibv_pd* pd, uint32_t handle) {
  if (!is_shadow(pd->context)) return real().ibv_import_mr(pd, handle);
  return refuse("an imported memory region");
}

ibv_pd* ibv_import_pd(ibv_context* context, uint32_t handle) {
  if (!is_shadow(context)) return real().ibv_import_pd(context, handle);
  return refuse("an imported protection domain");
}

ibv_dm* ibv_import_dm(ibv_context* context, uint32_t handle) {
  if (!is_shadow(context)) return real().ibv_import_dm(context, handle);
  return refuse("imported device memory");
}
}
