// Lines over a Unix stream socket, with a deadline and a bound on their length: what both halves of
// the control socket need.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "buffer_pool/result.h"

namespace ppmr {

using Deadline = std::chrono::steady_clock::time_point;

// Reads one line (without its newline) to `line`; what came behind it stays in `pending` for the
// next call. Errors: ETIMEDOUT, EMSGSIZE when the line is longer than `line_max_bytes`, ENODATA
// when the peer closed the connection, those of recv(2).
Status read_line(int socket, std::string& pending, std::string& line, size_t line_max_bytes,
                 Deadline deadline);

// Writes `line` and a newline. Errors: ETIMEDOUT, those of send(2).
Status write_line(int socket, std::string_view line, Deadline deadline);

// Waits until the socket can do `poll_events`. Errors: ETIMEDOUT.
Status wait_for(int socket, short poll_events, Deadline deadline);

}  // namespace ppmr
