// The client of a job's directory of peers (jobs/peer_directory.h).
#pragma once

#include <string>

#include "verbs_library/move/text_store.h"

namespace ppmr::verbs {

// Makes a client of the directory at `place`, ADDRESS:PORT. Reads the token from the file that the
// settings name. A request waits while the node with the directory moves. After a minute it fails
// with ETIMEDOUT.
TextStore* make_job_store(const std::string& place);

}  // namespace ppmr::verbs
