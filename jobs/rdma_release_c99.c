/* Shows that the header compiles as C99. */
#include "jobs/rdma_release.h"

int ppmr_rdma_in_c(struct ppmr_rdma *rdma);

int ppmr_rdma_in_c(struct ppmr_rdma *rdma) {
  if (ppmr_rdma_open(rdma) != 0) return -1;
  if (ppmr_rdma_fd(rdma) >= 0 && ppmr_rdma_timeout_ms(rdma) < 0 && ppmr_rdma_next(rdma) == PPMR_RDMA_NONE) {
    ppmr_rdma_done(rdma, 0);
  }
  ppmr_rdma_close(rdma);
  return 0;
}
