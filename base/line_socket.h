// Lines over a Unix stream socket, with a deadline and a maximum length. Used by both halves of the
// control socket, and between the daemon and its migration agents.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

using Deadline = std::chrono::steady_clock::time_point;

// The kernel passes at most so many file descriptors at once (SCM_MAX_FD).
inline constexpr size_t kDescriptorsMax = 253;

// Reads one line, without its newline, to `line`. Bytes after it stay in `pending` for the next
// call. Errors: ETIMEDOUT (with the incomplete line in `pending`), EMSGSIZE when the line is longer
// than `line_max_bytes`, ENODATA when the peer closed the connection, those of recvmsg(2). File
// descriptors that came with the line are added to `descriptors`, or closed if that is null; EMFILE
// if this process cannot have so many.
Status read_line(int socket, std::string& pending, std::string& line, size_t line_max_bytes,
                 Deadline deadline, std::vector<UniqueFd>* descriptors = nullptr);

// Writes `line` and a newline, and with them up to kDescriptorsMax file descriptors. Errors:
// ETIMEDOUT, those of sendmsg(2).
Status write_line(int socket, std::string_view line, Deadline deadline,
                  std::span<const UniqueFd> descriptors = {});

// Waits until poll(2) reports `poll_events` or an error on the socket. Errors: ETIMEDOUT.
Status wait_for(int socket, short poll_events, Deadline deadline);

}  // namespace ppmr
