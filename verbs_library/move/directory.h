// The directory of ends: one file per queue pair and GID, which only the user can read. Peers find
// each other in it, so all machines must see the same directory. Without a directory, the library
// writes no files, and peers know only what they tell each other in messages.
//
// The callers hold World::control, unless a comment says otherwise.
#pragma once

#include <optional>

#include "verbs_library/protocol/end_file.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

Secret new_secret();

// Takes the names of a new queue pair. If a name is taken already, returns false and takes none.
bool claim_names(Qp& qp, uint32_t qpn, const ControlAddress& control);

// Writes the files of the queue pair anew. `moves`: the process does not answer from now on.
void publish_names(const Qp& qp, const ControlAddress& control, bool moves);

void remove_names(Qp& qp);

// Reads the file of an end. Returns nullopt if there is no valid file of this user. Threads: any,
// without World::control.
std::optional<EndFile> read_end_file(const EndId& end);

}  // namespace ppmr::verbs
