// Reads and writes lines on a Unix stream socket, with a deadline and a maximum length. Both halves
// of the control socket use this, and so do the daemon and its migration agents.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/message_socket.h"  // kDescriptorsMax
#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

using Deadline = std::chrono::steady_clock::time_point;

// Reads one line, without its newline, to `line`. Bytes after the line stay in `pending` for the
// next call. Adds the file descriptors that came with the line to `descriptors`, or closes them if
// `descriptors` is null. Errors: ETIMEDOUT (the incomplete line is in `pending`), EMSGSIZE when the
// line is longer than `line_max_bytes`, ENODATA when the peer closed the connection, EMFILE if this
// process cannot have so many descriptors, and the errors of recvmsg(2).
Status read_line(int socket, std::string& pending, std::string& line, size_t line_max_bytes,
                 Deadline deadline, std::vector<UniqueFd>* descriptors = nullptr);

// Writes `line` and a newline, and passes up to kDescriptorsMax file descriptors with the line.
// Errors: ETIMEDOUT, and the errors of sendmsg(2).
Status write_line(int socket, std::string_view line, Deadline deadline,
                  std::span<const UniqueFd> descriptors = {});

// Waits until poll(2) reports `poll_events` or an error on the socket. Errors: ETIMEDOUT.
Status wait_for(int socket, short poll_events, Deadline deadline);

}  // namespace ppmr
