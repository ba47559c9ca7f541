// The seam of verbs.h over libibverbs and librdmacm.
#pragma once

#include <memory>

#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// `pinned_bytes_max`: how much this process will register, so that a limit that is too small is
// told at once. To be called before any memory is registered in this process.
std::unique_ptr<Fabric> make_verbs_fabric(uint64_t pinned_bytes_max);

}  // namespace ppmr
