#include "rdma_stream/control/agent_frames.h"

#include "base/crc32c.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

Status write_agent_frame(Connection& connection, const std::string& text) {
  if (text.size() > kAgentFrameMaxBytes) {
    return failure(EMSGSIZE, "message of " + std::to_string(text.size()) +
                                 " bytes for the agent: longer than " +
                                 std::to_string(kAgentFrameMaxBytes));
  }
  const auto body = std::as_bytes(std::span(text));
  wire::AgentFrameHeader header;
  header.body_length = static_cast<uint32_t>(text.size());
  header.body_crc = crc32c(body);
  header.crc = wire::fields_crc(header);
  if (auto sent = connection.write(std::span<const std::byte>(wire::encode(header))); !sent) {
    return sent;
  }
  return connection.write(body);
}

Result<std::string> read_agent_frame(Connection& connection, std::chrono::milliseconds timeout) {
  connection.set_read_timeout(timeout);
  std::array<std::byte, wire::kAgentFrameHeaderBytes> bytes{};
  if (auto read = connection.read(std::span<std::byte>(bytes)); !read) {
    return failure(read.error());
  }
  auto header = wire::decode<wire::AgentFrameHeader>(bytes);
  if (!header) return failure(header.error());
  if (header->crc != wire::fields_crc(*header)) {
    return failure(EBADMSG, "frame from " + connection.peer() + ": checksum mismatch");
  }
  if (header->body_length > kAgentFrameMaxBytes) {
    return failure(EPROTO, "frame of " + std::to_string(header->body_length) + " bytes from " +
                               connection.peer() + ": longer than " +
                               std::to_string(kAgentFrameMaxBytes));
  }
  std::string text(header->body_length, '\0');
  const auto body = std::as_writable_bytes(std::span(text));
  if (!text.empty()) {
    if (auto read = connection.read(body); !read) return failure(read.error());
  }
  if (crc32c(body) != header->body_crc) {
    return failure(EBADMSG, "frame from " + connection.peer() + ": checksum mismatch");
  }
  // A newline or a zero byte would break the line in which the daemon forwards the frame to the
  // agent.
  if (text.find('\n') != std::string::npos || text.find('\0') != std::string::npos) {
    return failure(EPROTO, "frame from " + connection.peer() + ": not one line of text");
  }
  return text;
}

}  // namespace ppmr
