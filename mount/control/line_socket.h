// Lines over a Unix stream socket, with a deadline and a maximum length. Used by both halves of the
// control socket, and between the daemon and its migration agents.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "buffer_pool/result.h"
#include "buffer_pool/unique_fd.h"

namespace ppmr {

using Deadline = std::chrono::steady_clock::time_point;

// Reads one line, without its newline, to `line`. Bytes after it stay in `pending` for the next
// call. Errors: ETIMEDOUT (with the incomplete line in `pending`), EMSGSIZE when the line is longer
// than `line_max_bytes`, ENODATA when the peer closed the connection, those of recvmsg(2). A file
// descriptor that came with the line is moved to `descriptor`, or closed.
Status read_line(int socket, std::string& pending, std::string& line, size_t line_max_bytes,
                 Deadline deadline, UniqueFd* descriptor = nullptr);

// Writes `line` and a newline, and with them a file descriptor unless it is -1. Errors: ETIMEDOUT,
// those of sendmsg(2).
Status write_line(int socket, std::string_view line, Deadline deadline, int descriptor = -1);

// Waits until poll(2) reports `poll_events` or an error on the socket. Errors: ETIMEDOUT.
Status wait_for(int socket, short poll_events, Deadline deadline);

}  // namespace ppmr
