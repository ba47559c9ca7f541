// Fuzzes every message of the wire: control, data, handshake, agent frames. The first byte of an
// input selects the message.
#include <array>

#include "rdma_stream/wire/wire.h"
#include "tests/fuzz/fuzz.h"

namespace ppmr::wire {
namespace {

// Decodes a message. If that succeeds, encoding must give the same bytes again.
template <typename Message>
void check(std::span<const std::byte> bytes) {
  std::span<const std::byte> rest;
  const auto message = decode<Message>(bytes, &rest);
  if (!message) return;
  REQUIRE(rest.size() <= bytes.size());
  const auto fields = bytes.first(bytes.size() - rest.size());
  const auto again = encode(*message, fields.size());
  REQUIRE(std::equal(again.begin(), again.end(), fields.begin(), fields.end()));
  REQUIRE(decode<Message>(bytes).has_value() == rest.empty());
}

template <typename... Messages>
constexpr auto checks_of() {
  return std::array{&check<Messages>...};
}

constexpr auto kChecks =
    checks_of<HandshakePrefix, ControlHello, DataHello, DataWelcome, AgentHello, Welcome, Reject,
              FrameHeader, Claim, Make, Remove, Rename, SetAttributes, Truncate, PunchHole,
              OpenedForWrite, Closed, Forget, Announce, AnnounceInline, Zeros, ManifestEntry, Seal,
              Abandon, SealRefused, Patience, ReadBack, Release, Outcome, ReadBackReply, Space,
              SealRequest, CheckpointRemoved, Want, TransportOffer, TransportChoice, RdmaHello,
              ReadRequest, ReadResponse, AgentFrameHeader>();

}  // namespace
}  // namespace ppmr::wire

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr::wire;
  if (input.empty()) return;
  kChecks[input[0] % kChecks.size()](std::as_bytes(input.subspan(1)));
}
