// Fuzzes the first bytes on a connection: handshakes at the target, the target's answers at the
// source, and the frames of a migration agent. The first byte of an input selects the decoder. If
// its highest bit is set, the test makes the checksums valid, so the decoder accepts the input and
// reads further.
#include "base/crc32c.h"
#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/control/agent_frames.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/input_connection.h"

namespace ppmr {
namespace {

constexpr std::chrono::milliseconds kNoTime{1};
constexpr uint8_t kValid = 0x80;

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// Returns a handshake of the kind in the first byte, with the rest as its body.
std::vector<std::byte> handshake(std::span<const std::byte> input) {
  wire::HandshakePrefix prefix;
  if (!input.empty()) {
    prefix.kind = static_cast<wire::HandshakeKind>(input[0]);
    input = input.subspan(1);
  }
  prefix.length = static_cast<uint32_t>(input.size());
  auto bytes = wire::encode(prefix);
  append(bytes, input);
  append(bytes, wire::encode(crc32c(bytes)));
  return bytes;
}

std::vector<std::byte> agent_frame(std::span<const std::byte> body) {
  wire::AgentFrameHeader header;
  header.body_length = static_cast<uint32_t>(body.size());
  header.body_crc = crc32c(body);
  header.crc = wire::fields_crc(header);
  auto bytes = wire::encode(header);
  append(bytes, body);
  return bytes;
}

void serve(Connection& connection) {
  const auto hello = receive_handshake(connection, kNoTime);
  if (!hello) return;
  REQUIRE(hello->body.size() <= wire::kHandshakeBodyMaxBytes);
  (void)wire::decode<wire::ControlHello>(hello->body);
  (void)wire::decode<wire::DataHello>(hello->body);
  (void)wire::decode<wire::AgentHello>(hello->body);
  (void)rejection(connection, *hello);
}

}  // namespace
}  // namespace ppmr

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  if (input.empty()) return;
  const bool valid = (input[0] & kValid) != 0;
  const int choice = (input[0] & ~kValid) % 5;
  const auto rest = std::as_bytes(input.subspan(1));
  std::vector<std::byte> bytes(rest.begin(), rest.end());
  if (valid) bytes = choice == 4 ? agent_frame(rest) : handshake(rest);
  InputConnection connection(std::move(bytes));
  switch (choice) {
    case 0:
      return serve(connection);
    case 1:
      (void)greet_target(connection, wire::ControlHello{}, kNoTime);
      return;
    case 2:
      // The input cannot contain the token, so the greeting must fail.
      REQUIRE(!greet_target(connection, wire::DataHello{}, wire::Token{1, 2, 3}, kNoTime));
      return;
    case 3:
      (void)greet_target(connection, wire::AgentHello{}, kNoTime);
      return;
    default:
      if (auto text = read_agent_frame(connection, kNoTime)) {
        REQUIRE(text->size() <= kAgentFrameMaxBytes);
        REQUIRE(text->find('\n') == std::string::npos);
      }
  }
}
