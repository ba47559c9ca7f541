// Tests sources that break the protocol. Each breach ends at most the session, with an error that
// names the breach.

#include <functional>
#include <thread>

#include "base/crc32c.h"
#include "tests/stream/greeting.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// Returns the check of bytes that are not encrypted.
wire::ChunkCheck checksum(std::span<const std::byte> bytes) {
  const auto crc = wire::encode(crc32c(bytes));
  wire::ChunkCheck check;
  for (size_t i = 0; i < crc.size(); ++i) check.code[i] = std::to_integer<uint8_t>(crc[i]);
  return check;
}

// Answers read requests until no further request arrives. The first `wrong_answers` answers have
// one wrong byte each. Returns the number of answers.
int serve_data(
    Connection& data, std::span<const std::byte> bytes, int wrong_answers,
    const std::function<void()>& before_answer = [] {}) {
  data.set_read_timeout(milliseconds(500));
  for (int requests = 0;; ++requests) {
    std::array<std::byte, wire::kReadRequestBytes> request_bytes;
    if (!data.read(std::span<std::byte>(request_bytes))) return requests;
    const auto request = *wire::decode<wire::ReadRequest>(request_bytes);
    before_answer();
    wire::ReadResponse response{request.id, request.generation, request.length, 0};
    response.crc = wire::fields_crc(response);
    EXPECT_TRUE(data.write(wire::encode(response)));
    std::vector<std::byte> answer(bytes.begin(), bytes.end());
    if (requests < wrong_answers) answer[answer.size() / 2] ^= std::byte{4};
    EXPECT_TRUE(data.write(answer));
  }
}

// A source that consists of a channel only, so that a test can send any message.
struct WrongSource : Greeting {
  WrongSource()
      : channel({}, [this](wire::MessageType type, std::span<const std::byte> body) {
          if (type == wire::MessageType::kRelease) {
            std::lock_guard lock(mutex);
            releases.push_back(wire::decode<wire::Release>(body).value());
          }
          return Status{};
        }) {
    std::shared_ptr<Connection> connection = connect();
    auto welcome = greet_target(*connection, greeting, kPatience);
    EXPECT_TRUE(welcome);
    token = welcome->token;
    thread = std::thread([this, connection] { channel.run(connection, 0); });
    wire::Claim claim;
    claim.node = kFile;
    claim.type = wire::NodeType::kFile;
    claim.name = "file";
    EXPECT_TRUE(channel.send(claim));
  }
  ~WrongSource() override {
    channel.fail(Error{ECANCELED, "the test ends"});
    thread.join();
  }

  static wire::Announce good_announce() {
    return {.node = kFile,
            .offset = 0,
            .length = 30'000,
            .slot = 0,
            .generation = 1,
            .slot_length = 30'000};
  }
  void serve_session(std::span<const std::byte> bytes, int wrong_answers) {
    auto data = connect();
    ASSERT_TRUE(greet_target(*data, {.session = greeting.session, .attempt = 1}, token, kPatience));
    requests = serve_data(*data, bytes, wrong_answers);
  }
  // Announces a chunk whose first `wrong_answers` pulls get wrong bytes.
  std::vector<std::byte> give_damaged(int wrong_answers) {
    auto message = good_announce();
    const std::vector<std::byte> bytes(message.length, std::byte{42});
    message.check = checksum(bytes);
    EXPECT_TRUE(channel.send(message));
    serve_session(bytes, wrong_answers);
    return bytes;
  }
  std::vector<wire::Release> await_release() {
    EXPECT_TRUE(eventually([&] {
      std::lock_guard lock(mutex);
      return !releases.empty();
    }));
    std::lock_guard lock(mutex);
    return releases;
  }
  void expect_end(const std::string& reason) {
    EXPECT_TRUE(eventually([&] { return rig.sink().open_sessions() == 0; }, kPatience));
    EXPECT_NE(rig.sink().end_reason().find(reason), std::string::npos) << rig.sink().end_reason();
    EXPECT_EQ(rig.sink().chunks_in_flight(), 0u);
  }

  static constexpr uint64_t kFile = 1;
  const wire::ControlHello greeting = good_hello();
  wire::Token token{};
  std::mutex mutex;
  std::vector<wire::Release> releases;  // guarded by mutex
  int requests = 0;
  Channel channel;
  std::thread thread;
};

struct WrongAnnouncement : WrongSource, testing::WithParamInterface<wire::Announce> {};

TEST_P(WrongAnnouncement, EndsTheSession) {
  ASSERT_TRUE(channel.send(GetParam()));
  expect_end("slot, offset or length out of range");
}

INSTANTIATE_TEST_SUITE_P(
    Of, WrongAnnouncement,
    testing::Values(wire::Announce{.node = 1, .length = 10, .slot = 4},
                    wire::Announce{.node = 1, .length = 10, .slot = UINT32_MAX},
                    wire::Announce{.node = 1, .length = 0},
                    wire::Announce{.node = 1, .length = kChunkSizeMinBytes + 1},
                    wire::Announce{.node = 1, .length = UINT32_MAX},
                    wire::Announce{.node = 1, .length = 10, .slot_offset = UINT32_MAX},
                    wire::Announce{.node = 1, .length = 10, .slot_offset = kChunkSizeMinBytes - 9},
                    wire::Announce{.node = 1, .offset = UINT64_MAX, .length = 10},
                    wire::Announce{.node = 1, .offset = INT64_MAX, .length = 10}));

struct WrongCompression : WrongSource, testing::WithParamInterface<wire::Announce> {};

TEST_P(WrongCompression, EndsTheSession) {
  ASSERT_TRUE(channel.send(GetParam()));
  expect_end("unknown compression, or its length is out of range");
}

INSTANTIATE_TEST_SUITE_P(
    Of, WrongCompression,
    testing::Values(wire::Announce{.node = 1, .length = 20'000, .slot_length = 10'000},
                    wire::Announce{.node = 1, .length = 20'000, .slot_length = 20'001},
                    wire::Announce{
                        .node = 1, .length = 20'000, .compression = wire::Compression::kLz4},
                    wire::Announce{.node = 1,
                                   .length = 20'000,
                                   .slot_length = 20'000,
                                   .compression = wire::Compression::kLz4},
                    wire::Announce{.node = 1,
                                   .length = 20'000,
                                   .slot_length = UINT32_MAX,
                                   .compression = wire::Compression::kZstd},
                    wire::Announce{.node = 1,
                                   .length = 20'000,
                                   .slot_length = 10'000,
                                   .compression = static_cast<wire::Compression>(3)}));

TEST_F(WrongSource, CompressedInlineChunkEndsTheSession) {
  wire::AnnounceInline message;
  static_cast<wire::Announce&>(message) = good_announce();
  message.length = 100;
  message.slot_length = 50;
  message.compression = wire::Compression::kLz4;
  const std::vector<std::byte> bytes(50);
  ASSERT_TRUE(channel.send(message, bytes));
  expect_end("inline chunk");
}

TEST_F(WrongSource, BytesThatDoNotDecompressFailOnlyTheirChunk) {
  auto message = good_announce();
  message.slot_length = 20'000;
  message.compression = wire::Compression::kZstd;
  const std::vector<std::byte> bytes(message.slot_length, std::byte{42});
  message.check = checksum(bytes);
  ASSERT_TRUE(channel.send(message));
  serve_session(bytes, /*wrong_answers=*/0);
  EXPECT_EQ(await_release().back().errno_value, EIO);
  EXPECT_EQ(rig.sink().content(kFile)->size(), 0u);
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
}

TEST_F(WrongSource, SlotAnnouncedTwiceEndsTheSession) {
  ASSERT_TRUE(channel.send(good_announce()));
  ASSERT_TRUE(channel.send(good_announce()));
  expect_end("again before the target released it");
}

TEST_F(WrongSource, ReconnectionIsRefusedWithTheReasonWhyTheSessionEnded) {
  ASSERT_TRUE(channel.send(wire::Release{}));
  expect_end("unexpected message");
  auto hello = greeting;
  hello.token = token;
  EXPECT_TRUE(eventually([&] {
    return refusal(hello).message.find("unexpected message of type 60") != std::string::npos;
  }));
  EXPECT_EQ(refusal(hello).errno_value, ESTALE);
}

TEST_F(WrongSource, InlineChunkShorterThanAnnouncedEndsTheSession) {
  wire::AnnounceInline message;
  static_cast<wire::Announce&>(message) = good_announce();
  const std::vector<std::byte> bytes(100);
  ASSERT_TRUE(channel.send(message, bytes));
  expect_end("inline chunk");
}

TEST_F(WrongSource, TooLongInlineChunkEndsTheSession) {
  wire::AnnounceInline message;
  static_cast<wire::Announce&>(message) = good_announce();
  const std::vector<std::byte> bytes(message.length);
  ASSERT_TRUE(channel.send(message, bytes));
  expect_end("inline chunk");
}

TEST_F(WrongSource, WrongChecksumOfInlineBytesFailsOnlyThatChunk) {
  wire::AnnounceInline message;
  static_cast<wire::Announce&>(message) = good_announce();
  message.length = message.slot_length = 100;
  message.check.code = {1, 2, 3, 4};
  const std::vector<std::byte> bytes(100);
  ASSERT_TRUE(channel.send(message, bytes));
  EXPECT_TRUE(
      eventually([&] { return channel.received_sequence() >= 3; }));  // space, result, release
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
  EXPECT_EQ(rig.sink().chunks_in_flight(), 0u);
}

TEST_F(WrongSource, MessageThatOnlyATargetSendsEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::Release{}));
  expect_end("unexpected message of type 60");
}

TEST_F(WrongSource, WantFromASourceEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::Want{1, 0, 1}));
  expect_end("unexpected message of type 66");
}

TEST_F(WrongSource, ZerosOfAnUnknownFileAreIgnoredByTheSession) {
  ASSERT_TRUE(channel.send(wire::Zeros{1'000'000, UINT64_MAX, UINT64_MAX}));
  ASSERT_TRUE(channel.send(wire::Zeros{kFile, 100, 10}));
  EXPECT_TRUE(eventually([this] { return rig.sink().zeros().size() == 1; }));
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
}

// A truncated Seal.
struct HalfOfASeal {
  static constexpr wire::MessageType kType = wire::MessageType::kSeal;
  uint32_t half = 0;
  template <typename F>
  void fields(F&& field) {
    field(half);
  }
};

TEST_F(WrongSource, TruncatedMessageEndsTheSession) {
  ASSERT_TRUE(channel.send(HalfOfASeal{}));
  expect_end("too short");
}

TEST_F(WrongSource, TooLargeReadBackEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::ReadBack{.request = 1, .node = kFile, .length = UINT32_MAX}));
  expect_end("at most");
}

TEST_F(WrongSource, ChunkOfAnUnknownFileIsReleasedWithAnError) {
  auto message = good_announce();
  message.node = 99;
  ASSERT_TRUE(channel.send(message));
  EXPECT_EQ(await_release().back().errno_value, ENOENT);
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
}

TEST_F(WrongSource, DamagedChunkIsPulledAgain) {
  const auto bytes = give_damaged(/*wrong_answers=*/2);
  EXPECT_EQ(requests, 3);
  EXPECT_EQ(await_release().back().errno_value, 0);
  EXPECT_EQ(rig.sink().content(kFile), bytes);
}

TEST_F(WrongSource, ChunkThatStaysDamagedFailsAndNeverLands) {
  give_damaged(/*wrong_answers=*/100);
  EXPECT_EQ(requests, 3);
  EXPECT_EQ(await_release().back().errno_value, EIO);
  EXPECT_EQ(rig.sink().content(kFile)->size(), 0u);
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
}

TEST_F(WrongSource, TotalsOutliveTheSession) {
  give_damaged(/*wrong_answers=*/2);
  EXPECT_EQ(await_release().back().errno_value, 0);
  const auto expect_totals = [this] {
    const ReceiverTotals totals = rig.receiver().totals();
    EXPECT_EQ(totals.chunks, 1u);
    EXPECT_EQ(totals.wire_bytes, 30'000u);
    EXPECT_EQ(totals.crc_failures, 2u);
    EXPECT_EQ(totals.aead_failures, 0u);
    EXPECT_EQ(totals.pulled_again, 2u);
  };
  expect_totals();
  ASSERT_TRUE(channel.send(wire::Release{}));  // this message ends the session
  EXPECT_TRUE(eventually([&] { return rig.receiver().sessions().empty(); }, kPatience));
  expect_totals();
}

// FileStream prevents overlapping chunks. The target must stay safe without FileStream.
TEST_F(WrongSource, OverlappingChunksInFlightAreReleased) {
  rig.sink().allow_overlaps();
  const std::vector<std::byte> bytes(30'000, std::byte{42});
  for (uint32_t slot = 0; slot < 3; ++slot) {
    auto message = good_announce();
    message.slot = slot;
    message.offset = slot * 100;
    message.check = checksum(bytes);
    ASSERT_TRUE(channel.send(message));
  }
  serve_session(bytes, /*wrong_answers=*/0);
  EXPECT_TRUE(eventually([&] { return await_release().size() == 3; }));
  EXPECT_EQ(requests, 3);
  EXPECT_EQ(rig.sink().chunks_in_flight(), 0u);
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
}

TEST(SilentSource, PayloadKeepsTheSessionAliveWithoutControlMessages) {
  RigOptions options;
  options.peer_timeout = milliseconds(1000);
  StreamRig rig(options);
  Channel channel({}, [](auto, auto) { return Status{}; });
  std::shared_ptr<Connection> control = std::move(rig.connector()->connect(kPatience).value());
  const auto hello = good_hello();
  const auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  std::thread thread([&] { channel.run(control, 0); });
  ASSERT_TRUE(channel.send(
      wire::Claim{.node = WrongSource::kFile, .type = wire::NodeType::kFile, .name = "file"}));
  const std::vector<std::byte> bytes(30'000, std::byte{42});
  for (uint32_t slot = 0; slot < hello.slot_count; ++slot) {
    auto message = WrongSource::good_announce();
    message.slot = slot;
    message.offset = slot * bytes.size();
    message.check = checksum(bytes);
    ASSERT_TRUE(channel.send(message));
  }
  ASSERT_TRUE(eventually([&] { return rig.sink().chunks_in_flight() == hello.slot_count; }));
  channel.fail(Error{ECANCELED, "silent from now on"});
  thread.join();
  // Twelve answers, each just in time, take twice the peer timeout.
  auto data = rig.connector()->connect(kPatience);
  ASSERT_TRUE(
      greet_target(**data, {.session = hello.session, .attempt = 1}, welcome->token, kPatience));
  const auto ended = [&] { return rig.sink().open_sessions() == 0; };
  const int requests = serve_data(**data, bytes, /*wrong_answers=*/8,
                                  [&] { return eventually(ended, milliseconds(170)); });
  EXPECT_EQ(requests, 12);
  EXPECT_EQ(rig.sink().content(WrongSource::kFile)->size(), 4 * bytes.size());
}

TEST(IdleSource, SessionEndsWhenAnnouncedBytesNeverArrive) {
  RigOptions options;
  options.peer_timeout = milliseconds(500);
  StreamRig rig(options);
  ChannelOptions channel_options;
  channel_options.timings.heartbeat_interval = milliseconds(20);
  Channel channel(channel_options, [](auto, auto) { return Status{}; });
  std::shared_ptr<Connection> connection = std::move(rig.connector()->connect(kPatience).value());
  ASSERT_TRUE(greet_target(*connection, good_hello(), kPatience));
  std::thread thread([&] { channel.run(connection, 0); });
  wire::Claim claim;
  claim.node = 1;
  claim.type = wire::NodeType::kFile;
  claim.name = "file";
  ASSERT_TRUE(channel.send(claim));
  ASSERT_TRUE(channel.send(WrongSource::good_announce()));
  EXPECT_TRUE(eventually([&] { return rig.sink().open_sessions() == 0; }, kPatience));
  EXPECT_NE(rig.sink().end_reason().find("no data connection"), std::string::npos)
      << rig.sink().end_reason();
  channel.fail(Error{ECANCELED, "over"});
  thread.join();
}

}  // namespace
}  // namespace ppmr
