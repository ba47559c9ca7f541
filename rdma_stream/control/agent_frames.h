// Messages between `ppmr migrate` and the agent at the target. Their connection begins with a hello
// of HandshakeKind::kAgent. Then each frame carries one JSON object: a request, then its answer.
#pragma once

#include <chrono>
#include <string>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

inline constexpr uint32_t kAgentFrameMaxBytes = 4 << 20;

// Errors: EMSGSIZE, those of Connection::write.
Status write_agent_frame(Connection& connection, const std::string& text);

// Blocks until a whole frame has arrived. Errors: ETIMEDOUT when no byte arrives for `timeout`,
// EPROTO when the frame is too long or not one line of text, EBADMSG for a wrong checksum, those of
// Connection::read.
Result<std::string> read_agent_frame(Connection& connection, std::chrono::milliseconds timeout);

}  // namespace ppmr
