// Peers that break the protocol, by mistake or on purpose, in both directions: what they say ends
// their session with an error that names the breach, and never more than that.

#include <gtest/gtest.h>

#include <thread>

#include "buffer_pool/crc32c.h"
#include "rdma_stream/handshake.h"
#include "rdma_stream/session_proof.h"
#include "tests/stream_rig.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{5000};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// ---- Handshakes --------------------------------------------------------------------------------

struct Greeting : testing::Test {
  std::unique_ptr<Connection> connect() {
    return std::move(rig.connector()->connect(kPatience).value());
  }
  static wire::ControlHello good_hello() {
    wire::ControlHello hello;
    hello.session = random_token();
    hello.slot_count = 4;
    hello.chunk_size_bytes = kChunkSizeMinBytes;
    hello.stream_count = 1;
    hello.source_name = "stranger";
    return hello;
  }
  // What the target answers to a hello that has something wrong.
  Error refusal(const wire::ControlHello& hello) {
    auto connection = connect();
    auto welcome = greet_target(*connection, hello, kPatience);
    EXPECT_FALSE(welcome);
    return welcome ? Error{0, ""} : welcome.error();
  }
  ~Greeting() override { EXPECT_EQ(rig.sink().violations(), std::vector<std::string>{}); }

  StreamRig rig;
};

TEST_F(Greeting, AnotherProtocolAtTheTargetIsRefused) {
  auto connection = connect();
  ASSERT_TRUE(connection->write(bytes_of("GET / HTTP/1.1\r\n\r\n")));
  auto answer = receive_handshake(*connection, kPatience);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->kind, wire::HandshakeKind::kReject);
  const auto reject = wire::decode<wire::Reject>(answer->body);
  EXPECT_NE(reject->text.find("GET / HTTP/1"), std::string::npos) << reject->text;
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

TEST_F(Greeting, AnotherVersionIsToldSo) {
  auto connection = connect();
  wire::HandshakePrefix prefix;
  prefix.version = wire::kVersion + 1;
  ASSERT_TRUE(connection->write(wire::encode(prefix)));
  auto answer = receive_handshake(*connection, kPatience);
  ASSERT_TRUE(answer);
  EXPECT_EQ(wire::decode<wire::Reject>(answer->body)->reason, wire::RejectReason::kVersion);
}

TEST_F(Greeting, ADamagedHelloIsNotBelieved) {
  auto connection = connect();
  wire::HandshakePrefix prefix;
  const auto body = wire::encode(good_hello());
  prefix.length = static_cast<uint32_t>(body.size());
  auto bytes = wire::encode(prefix);
  bytes.insert(bytes.end(), body.begin(), body.end());
  const auto crc = wire::encode(crc32c(bytes));
  bytes[20] ^= std::byte{1};
  bytes.insert(bytes.end(), crc.begin(), crc.end());
  ASSERT_TRUE(connection->write(bytes));
  auto answer = receive_handshake(*connection, kPatience);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, wire::HandshakeKind::kReject);
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

TEST_F(Greeting, NumbersOutOfRangeAreRefused) {
  for (auto spoil : std::initializer_list<void (*)(wire::ControlHello&)>{
           [](auto& hello) { hello.slot_count = 0; },
           [](auto& hello) { hello.slot_count = wire::kSlotsMax + 1; },
           [](auto& hello) { hello.chunk_size_bytes = 0; },
           [](auto& hello) { hello.chunk_size_bytes = UINT32_MAX; },
           [](auto& hello) { hello.stream_count = 0; },
           [](auto& hello) { hello.stream_count = wire::kStreamsMax + 1; },
           [](auto& hello) { hello.source_name.assign(256, 'x'); }}) {
    auto hello = good_hello();
    spoil(hello);
    EXPECT_EQ(refusal(hello).errno_value, ECONNREFUSED);
  }
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

TEST_F(Greeting, AnUnknownSessionIsStale) {
  auto hello = good_hello();
  hello.token = random_token();
  const Error error = refusal(hello);
  EXPECT_EQ(error.errno_value, ESTALE);
  EXPECT_NE(error.message.find("restarted"), std::string::npos) << error.message;
}

TEST_F(Greeting, ADataConnectionNeedsTheTokenOfItsSession) {
  auto control = connect();
  const auto hello = good_hello();
  auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  for (const auto& [session, token, errno_value] :
       std::vector<std::tuple<wire::Token, wire::Token, int>>{
           {hello.session, wire::Token{}, ESTALE},
           {hello.session, random_token(), ESTALE},
           {random_token(), welcome->token, ESTALE},
           {hello.session, welcome->token, 0}}) {
    auto data = connect();
    const Status greeted =
        greet_target(*data, {.session = session, .attempt = 1}, token, kPatience);
    EXPECT_EQ(greeted ? 0 : greeted.error().errno_value, errno_value);
  }
  // The right token, but a stream that the session does not have: closed.
  auto data = connect();
  (void)greet_target(*data, {.session = hello.session, .stream = 7, .attempt = 1}, welcome->token,
                     kPatience);
  data->set_read_timeout(kPatience);
  std::byte byte{};
  EXPECT_EQ(data->read(std::span(&byte, 1)).error().errno_value, ECONNRESET);
}

TEST_F(Greeting, ADataHelloIsAdmittedOnce) {
  auto control = connect();
  const auto hello = good_hello();
  auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  const auto greet = [&](uint64_t attempt) {
    auto data = connect();
    const Status greeted = greet_target(*data, {.session = hello.session, .attempt = attempt},
                                        welcome->token, kPatience);
    return greeted ? std::string() : greeted.error().message;
  };
  EXPECT_EQ(greet(1), "");
  EXPECT_NE(greet(1).find("used before"), std::string::npos);  // heard on the way, said again
  EXPECT_EQ(greet(5), "");
  EXPECT_NE(greet(4).find("used before"), std::string::npos);  // kept back on the way
  EXPECT_EQ(greet(6), "");
}

TEST_F(Greeting, AProofIsOfOneStreamAndOneAttemptAlone) {
  auto control = connect();
  auto hello = good_hello();
  hello.stream_count = 2;
  auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  const auto proof = session_proof(Prover::kSource, welcome->token, hello.session, 0, 1);
  for (const wire::DataHello& stolen :
       {wire::DataHello{hello.session, 1, 1, proof}, wire::DataHello{hello.session, 0, 2, proof},
        wire::DataHello{hello.session, 0, 1,
                        session_proof(Prover::kTarget, welcome->token, hello.session, 0, 1)}}) {
    auto data = connect();
    ASSERT_TRUE(send_handshake(*data, wire::HandshakeKind::kData, stolen));
    EXPECT_EQ(receive_handshake(*data, kPatience)->kind, wire::HandshakeKind::kReject);
  }
}

TEST_F(Greeting, TheTokenIsNeverSaidOnADataConnection) {
  auto control = connect();
  const auto hello = good_hello();
  auto welcome = greet_target(*control, hello, kPatience);
  ASSERT_TRUE(welcome);
  auto data = connect();
  wire::DataHello data_hello{.session = hello.session, .attempt = 1};
  data_hello.proof = session_proof(Prover::kSource, welcome->token, hello.session, 0, 1);
  ASSERT_TRUE(send_handshake(*data, wire::HandshakeKind::kData, data_hello));
  auto answer = receive_handshake(*data, kPatience);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, wire::HandshakeKind::kWelcome);
  const auto token = std::as_bytes(std::span(welcome->token));
  for (const auto& said : {wire::encode(data_hello), answer->body}) {
    EXPECT_EQ(std::search(said.begin(), said.end(), token.begin(), token.end()), said.end());
  }
}

TEST_F(Greeting, GarbageNeverOpensASession) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    auto connection = connect();
    std::vector<std::byte> bytes(1 + random() % 200);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    if (round % 2 == 0) {
      auto prefix =
          wire::encode(wire::HandshakePrefix{.kind = static_cast<wire::HandshakeKind>(random() % 6),
                                             .length = static_cast<uint32_t>(random() % 1500)});
      bytes.insert(bytes.begin(), prefix.begin(), prefix.end());
    }
    (void)connection->write(bytes);
  }
  EXPECT_TRUE(eventually([&] { return rig.connector()->connect(kPatience).has_value(); }));
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

// ---- A source that breaks the protocol ---------------------------------------------------------

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
  auto message = good_announce();
  const std::vector<std::byte> bytes(message.length, std::byte{42});
  message.crc = crc32c(bytes);
  ASSERT_TRUE(channel.send(message));
  serve_data(bytes, /*wrong_answers=*/2);
  EXPECT_EQ(requests, 3);
  EXPECT_EQ(await_release().back().errno_value, 0);
  EXPECT_EQ(rig.sink().content(kFile), bytes);
}

TEST_F(WrongSource, AChunkThatStaysDamagedIsAnErrorAndNeverLands) {
  auto message = good_announce();
  const std::vector<std::byte> bytes(message.length, std::byte{42});
  message.crc = crc32c(bytes);
  ASSERT_TRUE(channel.send(message));
  serve_data(bytes, /*wrong_answers=*/100);
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
  channel_options.heartbeat_interval = milliseconds(20);
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

// ---- A target that breaks the protocol ---------------------------------------------------------

// A target made of bare channels: welcomes everybody and says whatever it is told to.
struct WrongTarget : testing::Test {
  WrongTarget()
      : listener(network.listen()),
        connector(network.connector()),
        pool(std::move(BufferPool::create(4 * kChunkSizeMinBytes, kChunkSizeMinBytes).value())),
        channel({}, [this](wire::MessageType type, std::span<const std::byte> body) {
          if (type == wire::MessageType::kAnnounce) {
            std::lock_guard lock(mutex);
            announced.push_back(wire::decode<wire::Announce>(body).value());
          }
          return Status{};
        }) {
    acceptor = std::thread([this] { accept(); });
    SenderOptions options;
    options.stream_count = 1;
    options.peer_timeout = milliseconds(1000);
    sender = std::move(Sender::open(options, *pool, *connector, {}).value());
  }
  ~WrongTarget() override {
    sender.reset();
    EXPECT_EQ(pool->counters().free, pool->counters().slots);
    channel.fail(Error{ECANCELED, "the test ends"});
    listener->close();
    acceptor.join();
    for (auto& thread : threads) thread.join();
  }

  void accept() {
    for (;;) {
      auto connection = listener->accept();
      if (!connection) return;
      std::shared_ptr<Connection> shared = std::move(*connection);
      auto hello = receive_handshake(*shared, kPatience);
      if (!hello) continue;
      const bool control = hello->kind == wire::HandshakeKind::kControl;
      if (control) {
        (void)send_handshake(
            *shared, wire::HandshakeKind::kWelcome,
            wire::Welcome{.token = kToken, .received_sequence = channel.received_sequence()});
        if (!threads.empty()) {  // the session was given up: it does not come back
          shared->shut_down();
          continue;
        }
        threads.emplace_back([this, shared] { channel.run(shared, 0); });
      } else {
        const auto data_hello = *wire::decode<wire::DataHello>(hello->body);
        (void)send_handshake(
            *shared, wire::HandshakeKind::kWelcome,
            wire::DataWelcome{session_proof(Prover::kTarget, kToken, data_hello.session,
                                            data_hello.stream, data_hello.attempt)});
        std::lock_guard lock(mutex);
        data.push_back(shared);
      }
    }
  }

  // Has the source announce a chunk of its own, and waits for it.
  wire::Announce announce(uint32_t length = 20'000) {
    sender->announce(file->cut(pool->try_acquire(), 100, length, 0));
    EXPECT_TRUE(eventually([this] {
      std::lock_guard lock(mutex);
      return !announced.empty() && !data.empty();
    }));
    std::lock_guard lock(mutex);
    return announced.back();
  }
  // What the source answers to a read request: true when it gives the bytes.
  bool read(wire::ReadRequest request) {
    std::shared_ptr<Connection> connection;
    EXPECT_TRUE(eventually([&] {
      std::lock_guard lock(mutex);
      if (data.empty()) return false;
      connection = data.back();
      data.pop_back();
      return true;
    }));
    request.crc = request.crc != 0 ? request.crc : wire::fields_crc(request);
    EXPECT_TRUE(connection->write(wire::encode(request)));
    connection->set_read_timeout(kPatience);
    std::vector<std::byte> bytes(wire::kReadResponseBytes + request.length % (1 << 20));
    const Status read = connection->read(std::span<std::byte>(bytes));
    connection->shut_down();
    return read.has_value();
  }
  void expect_end(const std::string& reason) {
    EXPECT_TRUE(eventually([this] { return !sender->status(); }, kPatience));
    const Error error = sender->status().error();
    EXPECT_EQ(error.errno_value, EIO);
    EXPECT_NE(error.message.find(reason), std::string::npos) << error.message;
  }

  static constexpr wire::Token kToken{1};
  FaultyNetwork network;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connector> connector;
  std::unique_ptr<BufferPool> pool;
  std::mutex mutex;
  std::vector<wire::Announce> announced;          // guarded by mutex
  std::vector<std::shared_ptr<Connection>> data;  // guarded by mutex
  Channel channel;
  std::thread acceptor;
  std::vector<std::thread> threads;
  std::unique_ptr<Sender> sender;
  std::shared_ptr<FileStream> file =
      std::make_shared<FileStream>(1, std::make_shared<StickyError>());
};

TEST_F(WrongTarget, ReadsExactlyWhatIsAnnounced) {
  const auto chunk = announce();
  const wire::ReadRequest good{1, chunk.slot, chunk.generation, chunk.slot_offset, chunk.length, 0};
  EXPECT_TRUE(read(good));
  auto part = good;
  part.slot_offset += 10;
  part.length -= 10;
  EXPECT_TRUE(read(part));
}

TEST_F(WrongTarget, ReadsNothingElse) {
  const auto chunk = announce();
  const wire::ReadRequest good{1, chunk.slot, chunk.generation, chunk.slot_offset, chunk.length, 0};
  for (auto spoil : std::initializer_list<void (*)(wire::ReadRequest&)>{
           [](auto& request) { request.slot += 1; },          // not announced
           [](auto& request) { request.slot = UINT32_MAX; },  // not there
           [](auto& request) { request.generation += 1; },    // another use of it
           [](auto& request) { request.slot_offset -= 1; },   // before the chunk
           [](auto& request) { request.slot_offset += 1; },   // behind it
           [](auto& request) { request.length += 1; },
           [](auto& request) { request.length = UINT32_MAX; },
           [](auto& request) { request.crc = 1; }}) {
    auto request = good;
    spoil(request);
    EXPECT_FALSE(read(request));
  }
  EXPECT_TRUE(sender->status()) << "a late request is no breach";
}

// Whoever took the target's address gets no bytes of a process.
TEST(Sender, ATargetThatDoesNotKnowTheSessionGetsNoData) {
  FaultyNetwork network;
  auto listener = network.listen();
  auto connection = network.connector()->connect(kPatience);
  std::thread impostor([&] {
    std::shared_ptr<Connection> data = std::move(*listener->accept());
    auto hello = receive_handshake(*data, kPatience);
    const auto said = *wire::decode<wire::DataHello>(hello->body);
    (void)send_handshake(*data, wire::HandshakeKind::kWelcome, wire::DataWelcome{said.proof});
  });
  const Status greeted = greet_target(**connection, {.session = random_token(), .attempt = 1},
                                      random_token(), kPatience);
  impostor.join();
  ASSERT_FALSE(greeted);
  EXPECT_EQ(greeted.error().errno_value, EACCES);
}

TEST_F(WrongTarget, AReleaseOfAnotherGenerationEndsTheSession) {
  const auto chunk = announce();
  ASSERT_TRUE(channel.send(wire::Release{chunk.slot, chunk.generation + 1, 0}));
  expect_end("released slot");
  EXPECT_FALSE(file->drain(nullptr));
}

TEST_F(WrongTarget, AReleaseOfASlotThatIsNotThereEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::Release{UINT32_MAX, 0, 0}));
  expect_end("released slot");
}

TEST_F(WrongTarget, AReleaseTwiceEndsTheSession) {
  const auto chunk = announce();
  ASSERT_TRUE(channel.send(wire::Release{chunk.slot, chunk.generation, 0}));
  ASSERT_TRUE(channel.send(wire::Release{chunk.slot, chunk.generation, 0}));
  expect_end("released slot");
}

TEST_F(WrongTarget, AMessageThatOnlySourcesSendEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::Forget{1}));
  expect_end("unexpected message");
}

TEST_F(WrongTarget, AnAnswerThatNobodyAskedForIsIgnored) {
  ASSERT_TRUE(channel.send(wire::Outcome{.request = 77, .errno_value = 5}));
  ASSERT_TRUE(channel.send(wire::Space{.total_bytes = 9}));
  EXPECT_TRUE(eventually([this] { return sender->space().total_bytes == 9; }));
  EXPECT_TRUE(sender->status());
}

TEST_F(WrongTarget, AnErrorNumberThatIsNoneBecomesEio) {
  std::thread answer(
      [this] { (void)channel.send(wire::Outcome{.request = 1, .errno_value = -7}); });
  const Status claimed = sender->claim({});
  answer.join();
  if (!claimed) {
    EXPECT_EQ(claimed.error().errno_value, EIO);
  }
}

TEST_F(WrongTarget, MoreBytesThanWereAskedForAreAnError) {
  std::vector<std::byte> bytes(10);
  std::thread answer([this] {
    std::this_thread::sleep_for(milliseconds(50));
    const std::vector<std::byte> many(11);
    (void)channel.send(wire::ReadBackReply{.request = 1}, many);
  });
  auto count = sender->read_back(1, 0, bytes);
  answer.join();
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().errno_value, EIO);
}

TEST(Sender, AnotherProtocolAtTheTargetsPortIsRecognised) {
  FaultyNetwork network;
  auto listener = network.listen();
  auto connector = network.connector();
  auto pool = std::move(BufferPool::create(kChunkSizeMinBytes, kChunkSizeMinBytes).value());
  std::thread ssh([&] {
    auto connection = listener->accept();
    (void)(*connection)->write(bytes_of("SSH-2.0-OpenSSH_9.2p1\r\n"));
    std::this_thread::sleep_for(milliseconds(50));
  });
  auto sender = Sender::open({.peer_timeout = milliseconds(1000)}, *pool, *connector, {});
  ssh.join();
  ASSERT_FALSE(sender);
  EXPECT_EQ(sender.error().errno_value, EPROTO);
  EXPECT_NE(sender.error().message.find("SSH-2.0-Open"), std::string::npos);
}

TEST(Sender, ATargetThatNeverAnswersIsATimeout) {
  FaultyNetwork network;
  auto listener = network.listen();
  auto connector = network.connector();
  auto pool = std::move(BufferPool::create(kChunkSizeMinBytes, kChunkSizeMinBytes).value());
  auto sender = Sender::open({.peer_timeout = milliseconds(100)}, *pool, *connector, {});
  ASSERT_FALSE(sender);
  EXPECT_EQ(sender.error().errno_value, ETIMEDOUT);
}

}  // namespace
}  // namespace ppmr
