// Whether programs that have seen one processor can go on on another: CRIU's own judgement, which
// is the one that a restore would hear too late.
#pragma once

#include <string>

#include "buffer_pool/result.h"

namespace ppmr {

// What `criu cpuinfo dump` writes on this node, in hexadecimal. Takes some 0.1 s.
Result<std::string> describe_processor(const std::string& criu);

// `criu cpuinfo check` of another node's description. Errors: ENOTSUP with CRIU's words where this
// processor does not do; EPROTO where the description is none; others where CRIU cannot be run.
Status check_processor(const std::string& criu, const std::string& description);

}  // namespace ppmr
