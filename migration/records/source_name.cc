#include "migration/records/source_name.h"

#include "rdma_stream/connection/peer_identity.h"

namespace ppmr {

bool is_same_source(const SourceName& known, const SourceName& asking) {
  if (known.peer == asking.peer) return true;
  if (proves_its_name(known.peer) || proves_its_name(asking.peer)) return false;
  return !known.node_id.empty() && known.node_id == asking.node_id;
}

}  // namespace ppmr
