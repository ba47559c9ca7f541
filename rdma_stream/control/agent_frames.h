// Messages between `ppmr migrate` and the agent at the target. After its hello
// (HandshakeKind::kAgent) such a connection carries one JSON object per frame, request then answer.
#pragma once

#include <chrono>
#include <string>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

inline constexpr uint32_t kAgentFrameMaxBytes = 4 << 20;

// Errors: EMSGSIZE, those of Connection::write.
Status write_agent_frame(Connection& connection, const std::string& text);

// Blocks up to `timeout` until a frame begins, and up to `timeout` again until it is complete.
// Errors: ETIMEDOUT, EPROTO when the frame is too long or not one line of text, EBADMSG for a wrong
// checksum, those of Connection::read.
Result<std::string> read_agent_frame(Connection& connection, std::chrono::milliseconds timeout);

}  // namespace ppmr
