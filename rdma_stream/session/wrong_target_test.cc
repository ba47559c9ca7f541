// Targets that break the protocol, by mistake or on purpose: it ends the session with an error that
// names the breach, and never more than that.

#include <atomic>
#include <thread>

#include "rdma_stream/connection/session_proof.h"
#include "tests/stream/greeting.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// A target made of bare channels: welcomes everybody and says whatever it is told to.
struct WrongTarget : testing::Test {
  WrongTarget()
      : listener(network.listen()),
        connector(network.connector()),
        pool(std::move(BufferPool::create(4 * kChunkSizeMinBytes, kChunkSizeMinBytes).value())),
        channel({}, [this](wire::MessageType type, std::span<const std::byte> body) {
          last_heard = type;
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

  // An answer that comes before its question is ignored.
  void await(wire::MessageType type) {
    EXPECT_TRUE(eventually([&] { return last_heard == type; }));
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
  std::atomic<wire::MessageType> last_heard{};
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
  std::thread answer([this] {
    await(wire::MessageType::kClaim);
    (void)channel.send(wire::Outcome{.request = 1, .errno_value = -7});
  });
  const Status claimed = sender->claim({});
  answer.join();
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().errno_value, EIO);
}

TEST_F(WrongTarget, MoreBytesThanWereAskedForAreAnError) {
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

TEST_F(WrongTarget, WhoIsKilledWaitsNoLongerForBytesAndTheirLateComingIsNoError) {
  std::vector<std::byte> bytes(10);
  for (int request = 1; request <= 9; ++request) {  // one more than may be under way at once
    auto count = sender->read_back(1, 0, bytes, [] { return true; });
    ASSERT_FALSE(count);
    EXPECT_EQ(count.error().errno_value, EINTR);
  }
  EXPECT_TRUE(channel.send(wire::ReadBackReply{.request = 1}, bytes));
  std::thread answer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    const std::vector<std::byte> one(1);
    (void)channel.send(wire::ReadBackReply{.request = 9}, one);
  });
  EXPECT_EQ(sender->read_back(1, 0, bytes, {}).value_or(0), 1u);
  answer.join();
  EXPECT_TRUE(sender->status());
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
