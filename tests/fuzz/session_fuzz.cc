// Fuzzes a whole session at the target: control frames and read responses from a source, into the
// image store. The target's own threads take part, so this is slower than the other fuzz targets.
#include "base/crc32c.h"
#include "rdma_stream/session/incoming_session.h"
#include "tests/fuzz/input_connection.h"
#include "tests/fuzz/store_in_memory.h"

namespace ppmr {
namespace {

constexpr SessionId kSession = 1;
constexpr uint32_t kSlots = 4;
constexpr uint32_t kChunkBytes = 64 << 10;
// A small outbox, because a large one would cost most of the time: AddressSanitizer marks its
// memory for each input.
constexpr size_t kOutboxBytes = 64 << 10;

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// Returns valid frames around bodies from the input, followed by bytes that are no frame.
std::vector<std::byte> frames(FuzzedDataProvider& input) {
  std::vector<std::byte> bytes;
  uint64_t sequence = 0;
  while (input.remaining_bytes() > 0 && input.ConsumeIntegral<uint8_t>() != 0xff) {
    const auto body = input.ConsumeBytes<std::byte>(input.ConsumeIntegral<uint8_t>());
    wire::FrameHeader header;
    header.type = static_cast<wire::MessageType>(input.ConsumeIntegral<uint8_t>() % 80);
    header.body_length = static_cast<uint32_t>(body.size());
    header.sequence = header.type == wire::MessageType::kHeartbeat ? sequence : ++sequence;
    header.body_crc = crc32c(body);
    header.crc = wire::fields_crc(header);
    append(bytes, wire::encode(header));
    append(bytes, body);
  }
  append(bytes, input.ConsumeBytes<std::byte>(input.ConsumeIntegral<uint8_t>()));
  return bytes;
}

std::vector<std::byte> responses(FuzzedDataProvider& input) {
  std::vector<std::byte> bytes;
  for (uint32_t id = 0, count = input.ConsumeIntegral<uint8_t>() % kSlots; id < count; ++id) {
    const auto payload = input.ConsumeBytes<std::byte>(input.ConsumeIntegral<uint8_t>());
    wire::ReadResponse response{id, input.ConsumeIntegral<uint8_t>(),
                                static_cast<uint32_t>(payload.size()), 0};
    response.crc = wire::fields_crc(response);
    append(bytes, wire::encode(response));
    append(bytes, payload);
  }
  return bytes;
}

void run(ImageTree& tree, FuzzedDataProvider& input) {
  const auto data = std::make_shared<InputConnection>(responses(input));
  const auto control = std::make_shared<InputConnection>(frames(input));
  IncomingSession::Options options;
  options.id = kSession;
  options.hello.slot_count = kSlots;
  options.hello.chunk_size_bytes = kChunkBytes;
  options.hello.stream_count = 1;
  options.hello.source_name = "fuzzer";
  options.channel = {.outbox_capacity_bytes = kOutboxBytes,
                     .timings = SessionTimings::from_peer_timeout(std::chrono::seconds(10))};
  options.protection =
      *ChunkProtection::create(*control, {}, {}, wire::Protection::kChecksum, true);
  IncomingSession session(options, tree);
  tree.session_opened(kSession, options.hello.source_name, "owner");
  REQUIRE(session.attach_stream(0, data).has_value());
  (void)session.run_control(control, 0, "target");
  (void)session.over();
  (void)session.report();
  session.prioritize(1, 0, 1);
  session.want(1, 0, 1);
  session.space_freed();
  session.end(Error{EIO, "the input ends"});
  tree.session_ended(kSession, "the input ends");
}

}  // namespace
}  // namespace ppmr

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  SmallStore& store = SmallStore::get();
  {
    ImageTree tree(store.storage, store.parking);
    FuzzedDataProvider provider(input.data(), input.size());
    run(tree, provider);
    remove_all(tree);
  }
  REQUIRE(store.memory->counters().used_bytes == 0);
}
