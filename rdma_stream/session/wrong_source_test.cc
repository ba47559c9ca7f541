// Sources that break the protocol, by mistake or on purpose: it ends their session with an error
// that names the breach, and never more than that.

#include <thread>

#include "buffer_pool/crc32c.h"
#include "tests/stream/greeting.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// A source made of a bare channel, which says whatever it is told to.
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
    return {.node = kFile, .offset = 0, .length = 30'000, .slot = 0, .generation = 1};
  }
  // Answers read requests, each with one byte wrong, as often as told; then rightly.
  void serve_data(std::span<const std::byte> bytes, int wrong_answers) {
    auto data = connect();
    ASSERT_TRUE(greet_target(*data, {.session = greeting.session, .attempt = 1}, token, kPatience));
    data->set_read_timeout(milliseconds(500));
    for (;; --wrong_answers) {
      std::array<std::byte, wire::kReadRequestBytes> request_bytes;
      if (!data->read(std::span<std::byte>(request_bytes))) return;  // no more of them
      const auto request = *wire::decode<wire::ReadRequest>(request_bytes);
      ++requests;
      wire::ReadResponse response{request.id, request.generation, request.length, 0};
      response.crc = wire::fields_crc(response);
      ASSERT_TRUE(data->write(wire::encode(response)));
      std::vector<std::byte> answer(bytes.begin(), bytes.end());
      if (wrong_answers > 0) answer[answer.size() / 2] ^= std::byte{4};
      ASSERT_TRUE(data->write(answer));
    }
  }
  // A chunk that is right when it was pulled `wrong_answers` times and once more.
  std::vector<std::byte> give_damaged(int wrong_answers) {
    auto message = good_announce();
    const std::vector<std::byte> bytes(message.length, std::byte{42});
    message.crc = crc32c(bytes);
    EXPECT_TRUE(channel.send(message));
    serve_data(bytes, wrong_answers);
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
    EXPECT_EQ(rig.sink().chunks_under_way(), 0u);
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
  expect_end("numbers out of range");
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

TEST_F(WrongSource, ASlotAnnouncedTwiceEndsTheSession) {
  ASSERT_TRUE(channel.send(good_announce()));
  ASSERT_TRUE(channel.send(good_announce()));
  expect_end("not released yet");
}

TEST_F(WrongSource, LearnsWhyItsSessionWasEnded) {
  ASSERT_TRUE(channel.send(wire::Release{}));
  expect_end("unexpected message");
  auto hello = greeting;
  hello.token = token;
  EXPECT_TRUE(eventually(
      [&] { return refusal(hello).message.find("unexpected message 60") != std::string::npos; }));
  EXPECT_EQ(refusal(hello).errno_value, ESTALE);
}

TEST_F(WrongSource, InlineBytesOfAnotherLengthEndTheSession) {
  wire::AnnounceInline message;
  static_cast<wire::Announce&>(message) = good_announce();
  const std::vector<std::byte> bytes(100);
  ASSERT_TRUE(channel.send(message, bytes));
  expect_end("inline chunk");
}

TEST_F(WrongSource, MoreInlineThanAllowedEndsTheSession) {
  wire::AnnounceInline message;
  static_cast<wire::Announce&>(message) = good_announce();
  const std::vector<std::byte> bytes(message.length);
  ASSERT_TRUE(channel.send(message, bytes));
  expect_end("inline chunk");
}

TEST_F(WrongSource, AWrongChecksumOfInlineBytesIsAnErrorForThatChunkOnly) {
  wire::AnnounceInline message;
  static_cast<wire::Announce&>(message) = good_announce();
  message.length = 100;
  message.crc = 12345;
  const std::vector<std::byte> bytes(100);
  ASSERT_TRUE(channel.send(message, bytes));
  EXPECT_TRUE(
      eventually([&] { return channel.received_sequence() >= 3; }));  // space, result, release
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
  EXPECT_EQ(rig.sink().chunks_under_way(), 0u);
}

TEST_F(WrongSource, AMessageThatOnlyTargetsSendEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::Release{}));
  expect_end("unexpected message 60");
}

// A Seal of which half is missing.
struct HalfOfASeal {
  static constexpr wire::MessageType kType = wire::MessageType::kSeal;
  uint32_t half = 0;
  template <typename F>
  void fields(F&& field) {
    field(half);
  }
};

TEST_F(WrongSource, AMessageCutShortEndsTheSession) {
  ASSERT_TRUE(channel.send(HalfOfASeal{}));
  expect_end("too short");
}

TEST_F(WrongSource, ReadingBackTooMuchAtOnceEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::ReadBack{.request = 1, .node = kFile, .length = UINT32_MAX}));
  expect_end("too much");
}

TEST_F(WrongSource, AChunkOfAnUnknownFileIsReleasedWithAnError) {
  auto message = good_announce();
  message.node = 99;
  ASSERT_TRUE(channel.send(message));
  EXPECT_EQ(await_release().back().errno_value, ENOENT);
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
}

TEST_F(WrongSource, AChunkThatCameDamagedIsPulledAgain) {
  const auto bytes = give_damaged(/*wrong_answers=*/2);
  EXPECT_EQ(requests, 3);
  EXPECT_EQ(await_release().back().errno_value, 0);
  EXPECT_EQ(rig.sink().content(kFile), bytes);
}

TEST_F(WrongSource, AChunkThatStaysDamagedIsAnErrorAndNeverLands) {
  give_damaged(/*wrong_answers=*/100);
  EXPECT_EQ(requests, 3);
  EXPECT_EQ(await_release().back().errno_value, EIO);
  EXPECT_EQ(rig.sink().content(kFile)->size(), 0u);
  EXPECT_EQ(rig.sink().open_sessions(), 1u);
}

// A source that announces and never gives.
TEST(IdleSource, AnnouncingWithoutEverGivingEndsTheSession) {
  RigOptions options;
  options.peer_timeout = milliseconds(500);
  StreamRig rig(options);
  ChannelOptions channel_options;
  channel_options.timings.heartbeat_interval = milliseconds(20);
  Channel channel(channel_options, [](auto, auto) { return Status{}; });
  std::shared_ptr<Connection> connection = std::move(rig.connector()->connect(kPatience).value());
  ASSERT_TRUE(greet_target(*connection, Greeting::good_hello(), kPatience));
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
