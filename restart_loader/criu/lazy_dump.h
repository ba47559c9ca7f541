// A dump that leaves lazily loadable memory out of the images (`criu dump --lazy-pages`), without
// CRIU's page server.
//
// After its post-dump hook CRIU waits for a client of its page server before it kills or resumes
// the tree. As this client, ppmr passes a socket whose other end is closed. So CRIU continues at
// once.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Returns the options for the dump.
std::vector<std::string> lazy_dump_options();

// Makes the client's socket. The caller is the process that becomes CRIU. Errors: of socketpair(2)
// and dup2(2).
Status open_ended_page_client();

}  // namespace ppmr
