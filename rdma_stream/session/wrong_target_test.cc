// Tests targets that break the protocol. Each breach ends at most the session, with an error that
// names the breach.

#include <atomic>
#include <thread>

#include "rdma_stream/connection/session_proof.h"
#include "tests/stream/greeting.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// A target that consists of a channel only, so that a test can send any message. It accepts every
// source.
struct WrongTarget : testing::Test {
  WrongTarget()
      : listener(network.listen()),
        connector(network.connector()),
        pool(std::move(BufferPool::create(4 * kChunkSizeMinBytes, kChunkSizeMinBytes).value())),
        channel({}, [this](wire::MessageType type, std::span<const std::byte> body) {
          last_received = type;
          if (type == wire::MessageType::kReadBack) ++read_backs;
          if (type == wire::MessageType::kAnnounce) {
            std::lock_guard lock(mutex);
            announced.push_back(wire::decode<wire::Announce>(body).value());
          }
          return Status{};
        }) {
    acceptor = std::thread([this] { accept(); });
    SenderOptions options;
    options.stream_count = 1;
    options.peer_timeout = kPeerTimeout;
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
        if (!threads.empty()) {  // no reconnection after the end of the session
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

  // The source ignores an answer that arrives before its request.
  void await(wire::MessageType type) {
    EXPECT_TRUE(eventually([&] { return last_received == type; }));
  }
  // Makes the source announce a chunk, and waits for it.
  wire::Announce announce(uint32_t length = 20'000) {
    sender->announce(file->cut(pool->try_acquire(), 100, length, 0));
    EXPECT_TRUE(eventually([this] {
      std::lock_guard lock(mutex);
      return !announced.empty() && !data.empty();
    }));
    std::lock_guard lock(mutex);
    return announced.back();
  }
  // Returns whether the source answers a read request.
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
  // Long enough for a loaded machine, because the fixture does not accept a reconnection.
  static constexpr milliseconds kPeerTimeout{3000};
  FaultyNetwork network;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connector> connector;
  std::unique_ptr<BufferPool> pool;
  std::atomic<wire::MessageType> last_received{};
  std::atomic<int> read_backs = 0;
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

TEST_F(WrongTarget, CanReadAllOrPartOfAnAnnouncedChunk) {
  const auto chunk = announce();
  const wire::ReadRequest good{1, chunk.slot, chunk.generation, chunk.slot_offset, chunk.length, 0};
  EXPECT_TRUE(read(good));
  auto part = good;
  part.slot_offset += 10;
  part.length -= 10;
  EXPECT_TRUE(read(part));
}

TEST_F(WrongTarget, CannotReadBytesThatWereNotAnnounced) {
  const auto chunk = announce();
  const wire::ReadRequest good{1, chunk.slot, chunk.generation, chunk.slot_offset, chunk.length, 0};
  for (auto spoil : std::initializer_list<void (*)(wire::ReadRequest&)>{
           [](auto& request) { request.slot += 1; },          // a slot that is not announced
           [](auto& request) { request.slot = UINT32_MAX; },  // a slot that does not exist
           [](auto& request) { request.generation += 1; },    // another use of the slot
           [](auto& request) { request.slot_offset -= 1; },   // begins before the chunk
           [](auto& request) { request.slot_offset += 1; },   // ends after the chunk
           [](auto& request) { request.length += 1; },
           [](auto& request) { request.length = UINT32_MAX; },
           [](auto& request) { request.crc = 1; }}) {
    auto request = good;
    spoil(request);
    EXPECT_FALSE(read(request));
  }
  EXPECT_TRUE(sender->status()) << "a late request must not end the session";
}

// A wrong program at the target's address must not get the memory of a process.
TEST(Sender, RefusesADataConnectionIfThePeerDoesNotProveThatItIsTheTarget) {
  FaultyNetwork network;
  auto listener = network.listen();
  auto connection = network.connector()->connect(kPatience);
  std::thread impostor([&] {
    std::shared_ptr<Connection> data = std::move(*listener->accept());
    auto hello = receive_handshake(*data, kPatience);
    const auto replayed = *wire::decode<wire::DataHello>(hello->body);
    (void)send_handshake(*data, wire::HandshakeKind::kWelcome, wire::DataWelcome{replayed.proof});
  });
  const Status greeted = greet_target(**connection, {.session = random_token(), .attempt = 1},
                                      random_token(), kPatience);
  impostor.join();
  ASSERT_FALSE(greeted);
  EXPECT_EQ(greeted.error().errno_value, EACCES);
}

TEST_F(WrongTarget, ReleaseWithAWrongSlotGenerationEndsTheSession) {
  const auto chunk = announce();
  ASSERT_TRUE(channel.send(wire::Release{chunk.slot, chunk.generation + 1, 0}));
  expect_end("released slot");
  EXPECT_FALSE(file->drain(nullptr));
}

TEST_F(WrongTarget, ReleaseOfANonexistentSlotEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::Release{UINT32_MAX, 0, 0}));
  expect_end("released slot");
}

TEST_F(WrongTarget, SecondReleaseOfAChunkEndsTheSession) {
  const auto chunk = announce();
  ASSERT_TRUE(channel.send(wire::Release{chunk.slot, chunk.generation, 0}));
  ASSERT_TRUE(channel.send(wire::Release{chunk.slot, chunk.generation, 0}));
  expect_end("released slot");
}

TEST_F(WrongTarget, MessageThatOnlyASourceSendsEndsTheSession) {
  ASSERT_TRUE(channel.send(wire::Forget{1}));
  expect_end("unexpected message");
}

TEST_F(WrongTarget, WantsWithAnyValuesAreHarmless) {
  const auto chunk = announce();
  for (const uint64_t value : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
    ASSERT_TRUE(channel.send(wire::Want{value, value, UINT64_MAX - value}));
  }
  ASSERT_TRUE(channel.send(wire::Release{chunk.slot, chunk.generation, 0}));
  EXPECT_TRUE(file->drain(nullptr));
  EXPECT_TRUE(sender->status());
}

TEST_F(WrongTarget, TooLongWantEndsTheSession) {
  const std::array<std::byte, 1> more{};
  ASSERT_TRUE(channel.send(wire::Want{1, 2, 3}, more));
  expect_end("too long");
}

TEST_F(WrongTarget, ZerosFromATargetEndTheSession) {
  ASSERT_TRUE(channel.send(wire::Zeros{1, 2, 3}));
  expect_end("unexpected message");
}

TEST_F(WrongTarget, UnrequestedAnswerIsIgnored) {
  ASSERT_TRUE(channel.send(wire::Outcome{.request = 77, .errno_value = 5}));
  ASSERT_TRUE(channel.send(wire::Space{.total_bytes = 9}));
  EXPECT_TRUE(eventually([this] { return sender->space().total_bytes == 9; }));
  EXPECT_TRUE(sender->status());
}

TEST_F(WrongTarget, ErrnoOutOfRangeBecomesEio) {
  std::thread answer([this] {
    await(wire::MessageType::kClaim);
    (void)channel.send(wire::Outcome{.request = 1, .errno_value = -7});
  });
  const Status claimed = sender->claim({});
  answer.join();
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().errno_value, EIO);
}

TEST_F(WrongTarget, TooLongReadBackReplyIsAnError) {
  std::vector<std::byte> bytes(10);
  std::thread answer([this] {
    await(wire::MessageType::kReadBack);
    const std::vector<std::byte> many(11);
    (void)channel.send(wire::ReadBackReply{.request = 1}, many);
  });
  auto count = sender->read_back(1, 0, bytes, {});
  answer.join();
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().errno_value, EIO);
}

TEST_F(WrongTarget, InterruptedReadBackReturnsAndItsLateReplyIsIgnored) {
  std::vector<std::byte> bytes(10);
  for (int request = 1; request <= 9; ++request) {  // one more than the permits
    auto count = sender->read_back(1, 0, bytes, [] { return true; });
    ASSERT_FALSE(count);
    EXPECT_EQ(count.error().errno_value, EINTR);
  }
  EXPECT_TRUE(channel.send(wire::ReadBackReply{.request = 1}, bytes));
  std::thread answer([&] {
    EXPECT_TRUE(eventually([this] { return read_backs == 9; }));
    const std::vector<std::byte> one(1);
    (void)channel.send(wire::ReadBackReply{.request = 9}, one);
  });
  EXPECT_EQ(sender->read_back(1, 0, bytes, {}).value_or(0), 1u);
  answer.join();
  EXPECT_TRUE(sender->status());
}

// Read requests keep a session alive while its control connection is lost.
TEST_F(WrongTarget, ReadRequestsKeepTheSessionAliveWithoutAControlConnection) {
  const auto chunk = announce();
  const wire::ReadRequest good{1, chunk.slot, chunk.generation, chunk.slot_offset, chunk.length, 0};
  channel.disconnect();
  const auto end = std::chrono::steady_clock::now() + 2 * kPeerTimeout;
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(read(good));
  }
  EXPECT_TRUE(sender->status()) << sender->status().error().message;
}

TEST(Sender, ReportsAnotherProtocolAtTheTargetsPort) {
  FaultyNetwork network;
  auto listener = network.listen();
  auto connector = network.connector();
  auto pool = std::move(BufferPool::create(kChunkSizeMinBytes, kChunkSizeMinBytes).value());
  std::thread ssh([&] {
    auto connection = listener->accept();
    (void)(*connection)->write(bytes_of("SSH-2.0-OpenSSH_9.2p1\r\n"));
    std::array<std::byte, 64> ignored;
    while ((*connection)->read_some(ignored)) continue;
  });
  auto sender = Sender::open({.peer_timeout = milliseconds(1000)}, *pool, *connector, {});
  ssh.join();
  ASSERT_FALSE(sender);
  EXPECT_EQ(sender.error().errno_value, EPROTO);
  EXPECT_NE(sender.error().message.find("SSH-2.0-Open"), std::string::npos);
}

TEST(Sender, TimesOutWhenTheTargetNeverAnswers) {
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
