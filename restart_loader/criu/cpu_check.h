// Asks CRIU whether a program that started on one processor can continue on another. `criu restore`
// makes the same check, but only after the dump.
#pragma once

#include <string>

#include "base/result.h"

namespace ppmr {

// Returns the output of `criu cpuinfo dump` on this node, in hexadecimal. Takes about 0.1 s.
// Errors: ECHILD with CRIU's message; EPROTO or those of the file system if CRIU succeeds without
// an image.
Result<std::string> describe_processor(const std::string& criu);

// Runs `criu cpuinfo check` on another node's description. Errors: ENOTSUP with CRIU's message if
// this processor is incompatible; EPROTO if the description is malformed; ETIMEDOUT; ECHILD if CRIU
// was killed; those of CriuProcess::start() and of the file system.
Status check_processor(const std::string& criu, const std::string& description);

}  // namespace ppmr
