// Decides whether a source that makes a request is the source that a target knows.
#pragma once

#include <string>

namespace ppmr {

struct SourceName {
  std::string peer;     // PeerIdentity::owner()
  std::string node_id;  // its read_node_id(), as it claims; empty: unknown
};

// Returns whether both name the same source. A source without a certificate only claims its name,
// which changes with its host name. If such a name has changed, the node ID decides, which the
// source also only claims. A certificate proves a name, and no claim can replace the proof.
bool is_same_source(const SourceName& known, const SourceName& asking);

}  // namespace ppmr
