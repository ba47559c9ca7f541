// Whether a source that asks is the one that a target knows.
#pragma once

#include <string>

namespace ppmr {

struct SourceName {
  std::string peer;     // PeerIdentity::owner()
  std::string node_id;  // read_node_id() there, as it claims; empty: unknown
};

// Returns whether both name the same source. A name that is only claimed follows the host name. If
// the node has been renamed, its ID decides, which is claimed as well. A certificate proves its
// name, and no claim replaces it.
bool is_same_source(const SourceName& known, const SourceName& asking);

}  // namespace ppmr
