// The directory of ends: one file per queue pair and GID, readable by the user only. Peers find
// each other in it, so all machines must see the same one. Without a directory nothing is written,
// and peers know only what they learn from each other.
//
// The callers hold World::control, unless it says otherwise.
#pragma once

#include <optional>

#include "verbs_library/protocol/end_file.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

Secret new_secret();

// Takes the names of a new queue pair. Returns false if one of them is taken: then none is.
bool claim_names(Qp& qp, uint32_t qpn, const ControlAddress& control);

// Writes the files anew. `moves`: the process does not answer from now on.
void publish_names(const Qp& qp, const ControlAddress& control, bool moves);

void remove_names(Qp& qp);

// Returns nullopt if there is no valid file of this user. Threads: any, without lock.
std::optional<EndFile> read_end_file(const EndId& end);

}  // namespace ppmr::verbs
