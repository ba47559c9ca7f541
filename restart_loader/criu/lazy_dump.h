// A dump that leaves lazily loadable memory out of the images (`criu dump --lazy-pages`), without
// CRIU's page server.
//
// After its post-dump hook CRIU waits for a client of its page server before it kills the tree or
// lets it run on. Here the client is a socket whose other end is closed, so CRIU goes on at once.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Options for the dump.
std::vector<std::string> lazy_dump_options();

// Call in the process that becomes CRIU. Errors: of socketpair(2) and dup2(2).
Status open_ended_page_client();

}  // namespace ppmr
