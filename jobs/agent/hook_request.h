// A request of another program for the evacuation of this host: the file NAME.request.
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace ppmr {

// A program may still be writing a request that is younger.
inline constexpr std::chrono::seconds kHookRequestSettles{1};

struct HookRequest {
  std::string to;  // the spare; empty: the home chooses one for each node
};

// Parses a request. An empty one, and {}, name no spare. `age`: the time since the last change of
// the file. Errors: EAGAIN: the text is no complete request, and may still be being written;
// EINVAL.
Result<HookRequest> parse_hook_request(const std::string& text, std::chrono::nanoseconds age);

// Reads the request in a file. Errors: those of parse_hook_request(); ENOENT: it was withdrawn;
// EIO: it cannot be read.
Result<HookRequest> read_hook_request(const std::string& path);

}  // namespace ppmr
