#include "rdma_stream/control/channel.h"

#include <gtest/gtest.h>

#include <future>
#include <new>
#include <random>
#include <thread>

#include "base/crc32c.h"
#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSoon{200};
constexpr milliseconds kNever{60'000};

// Two channels over a network whose link a test can cut and restore.
struct Ends {
  explicit Ends(FaultOptions faults = {}, ChannelOptions options = patient())
      : network(faults),
        listener(network.listen()),
        connector(network.connector()),
        left(options, [](auto, auto) { return Status{}; }),
        right(options, [this](wire::MessageType type, std::span<const std::byte> body) {
          return receive(type, body);
        }) {}
  ~Ends() {
    left.fail(Error{ECANCELED, "the test ends"});
    right.fail(Error{ECANCELED, "the test ends"});
    for (auto& thread : threads) thread.join();
  }

  static ChannelOptions patient() {
    ChannelOptions options;
    options.timings.heartbeat_interval = milliseconds(20);
    options.timings.connection_silence_max = kNever;
    return options;
  }

  Status receive(wire::MessageType type, std::span<const std::byte> body) {
    EXPECT_EQ(type, wire::MessageType::kForget);
    std::span<const std::byte> rest;
    auto message = wire::decode<wire::Forget>(body, &rest);
    if (!message) return failure(message.error());
    received_bytes += rest.size();
    std::lock_guard lock(mutex);
    received.push_back(message->node);
    return {};
  }

  std::pair<std::shared_ptr<Connection>, std::shared_ptr<Connection>> connections() {
    std::shared_ptr<Connection> a = std::move(connector->connect(kSoon).value());
    std::shared_ptr<Connection> b = std::move(listener->accept().value());
    return {a, b};
  }

  // Connects both ends and runs them in the background.
  void join() {
    auto [a, b] = connections();
    const uint64_t at_left = left.received_sequence(), at_right = right.received_sequence();
    threads.emplace_back([this, a = a, at_right] { left.run(a, at_right); });
    threads.emplace_back([this, b = b, at_left] { right.run(b, at_left); });
  }

  // Returns whether the outbox of the left end is full, so send() blocks.
  bool left_is_full() {
    const Status posted = left.post(wire::Forget{0});
    return !posted && posted.error().errno_value == ENOBUFS;
  }

  size_t count() {
    std::lock_guard lock(mutex);
    return received.size();
  }

  FaultyNetwork network;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connector> connector;
  std::mutex mutex;
  std::vector<uint64_t> received;  // guarded by mutex
  std::atomic<size_t> received_bytes = 0;
  Channel left;
  Channel right;
  std::vector<std::thread> threads;
};

TEST(Channel, MessagesArriveOnceAndInOrderAcrossReconnections) {
  constexpr uint64_t kMessages = 20'000;
  FaultOptions faults;
  faults.seed = 3;
  faults.segment_bytes_max = 4 << 10;
  faults.rates = {.drop = 0.02, .delay = 0.05, .cut = 0.02, .reorder = 0.02, .corrupt = 0.02};
  faults.delay_max = milliseconds(2);
  ChannelOptions impatient;
  impatient.timings.heartbeat_interval = milliseconds(5);
  impatient.timings.connection_silence_max = milliseconds(50);
  Ends ends(faults, impatient);
  std::thread sender([&] {
    for (uint64_t i = 0; i < kMessages; ++i) ASSERT_TRUE(ends.left.send(wire::Forget{i}));
  });
  size_t connections = 0;
  while (ends.count() < kMessages && ++connections < 2000) {
    auto [a, b] = ends.connections();
    const uint64_t at_left = ends.left.received_sequence();
    const uint64_t at_right = ends.right.received_sequence();
    std::thread left([&, a = a] { ends.left.run(a, at_right); });
    ends.right.run(b, at_left);
    left.join();
    ASSERT_FALSE(ends.left.failed()) << ends.left.failed()->message;
    ASSERT_FALSE(ends.right.failed()) << ends.right.failed()->message;
  }
  sender.join();
  EXPECT_GT(connections, 2u) << "the network was not faulty enough";
  ASSERT_EQ(ends.count(), kMessages);
  for (uint64_t i = 0; i < kMessages; ++i) ASSERT_EQ(ends.received[i], i);
}

TEST(Channel, SendBlocksWhileTheOutboxIsFull) {
  ChannelOptions options = Ends::patient();
  options.outbox_capacity_bytes = 4 << 10;
  Ends ends({}, options);
  std::atomic<uint64_t> sent = 0;
  std::thread sender([&] {
    for (; sent < 1000; ++sent) ASSERT_TRUE(ends.left.send(wire::Forget{sent}));
  });
  constexpr uint64_t kFits = (4 << 10) / (wire::kFrameHeaderBytes + sizeof(wire::Forget));
  EXPECT_TRUE(eventually([&] { return sent == kFits; })) << sent;
  EXPECT_TRUE(ends.left_is_full());
  EXPECT_EQ(sent, kFits);
  ends.join();
  sender.join();
  EXPECT_TRUE(eventually([&] { return ends.count() == 1000; }));
}

TEST(Channel, DeferredMessageLeavesWithTheNextMessageOrAnExplicitPush) {
  ChannelOptions options;
  options.timings.heartbeat_interval = options.timings.connection_silence_max = kNever;
  Ends ends({}, options);
  ends.join();
  ASSERT_TRUE(ends.left.send(wire::Forget{1}));
  EXPECT_TRUE(eventually([&] { return ends.count() == 1; }));
  ends.left.flush(milliseconds(5000));  // now the writer thread waits, and does not see message 2
  ASSERT_TRUE(ends.left.send_with_next(wire::Forget{2}));
  ends.left.flush(milliseconds(50));
  EXPECT_EQ(ends.count(), 1u);
  ASSERT_TRUE(ends.left.send(wire::Forget{3}));
  EXPECT_TRUE(eventually([&] { return ends.count() == 3; }));
  ASSERT_TRUE(ends.left.send_with_next(wire::Forget{4}));
  ends.left.push();
  EXPECT_TRUE(eventually([&] { return ends.count() == 4; }));
  EXPECT_EQ(ends.received, (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST(Channel, GatheredMessagesAreSentTogetherAfterAMoment) {
  ChannelOptions options;
  options.timings.heartbeat_interval = options.timings.connection_silence_max = kNever;
  Ends ends({}, options);
  ends.join();
  for (uint64_t i = 1; i <= 1000; ++i) ASSERT_TRUE(ends.left.send_soon(wire::Forget{i}));
  EXPECT_TRUE(eventually([&] { return ends.count() == 1000; }));
  // The peer has acknowledged all but the last messages, so these bytes do not fill the outbox.
  const std::vector<std::byte> bytes(128 << 10);
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(ends.left.send_soon(wire::Forget{i}, bytes));
  EXPECT_TRUE(eventually([&] { return ends.count() == 1100; }));
  ASSERT_TRUE(ends.left.send_soon(wire::Forget{0}));
  ends.left.push();
  EXPECT_TRUE(eventually([&] { return ends.count() == 1101; }));
}

TEST(Channel, DeferredMessageLeavesWithTheNextHeartbeatAtTheLatest) {
  Ends ends;
  ends.join();
  ASSERT_TRUE(ends.left.send_with_next(wire::Forget{1}));
  EXPECT_TRUE(eventually([&] { return ends.count() == 1; }));
}

TEST(Channel, LargeMessagesAreAcknowledgedBeforeTheOutboxIsFull) {
  ChannelOptions options;
  options.timings.heartbeat_interval = kNever;  // heartbeats would also acknowledge
  options.timings.connection_silence_max = kNever;
  Ends ends({}, options);
  ends.join();
  const std::vector<std::byte> bytes(128 << 10);
  std::thread sender([&] {
    for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(ends.left.send(wire::Forget{i}, bytes));
  });
  EXPECT_TRUE(eventually([&] { return ends.count() == 100; }, milliseconds(5000)))
      << "after " << ends.count() << " messages";
  ends.left.fail(Error{ECANCELED, "over"});
  sender.join();
}

TEST(Channel, CorruptedFrameEndsTheConnectionButNotTheSession) {
  FaultOptions faults;
  faults.seed = 1;
  faults.rates.corrupt = 1;
  faults.faults_max = 1;
  ChannelOptions options = Ends::patient();
  options.timings.heartbeat_interval = kNever;  // otherwise the fault may hit a heartbeat
  Ends ends(faults, options);
  ASSERT_TRUE(ends.left.send(wire::Forget{1}));
  {
    auto [a, b] = ends.connections();
    std::thread left([&, a = a] { ends.left.run(a, 0); });
    const Error reason = ends.right.run(b, 0);
    left.join();
    EXPECT_EQ(reason.errno_value, EPROTO);
    EXPECT_NE(reason.message.find("checksum"), std::string::npos) << reason.message;
  }
  ends.join();
  EXPECT_TRUE(eventually([&] { return ends.count() == 1; }));
}

// Returns a frame that no channel would send.
std::vector<std::byte> frame(wire::FrameHeader header, std::span<const std::byte> body) {
  header.body_length =
      header.body_length != 0 ? header.body_length : static_cast<uint32_t>(body.size());
  header.body_crc = crc32c(body);
  header.crc = wire::fields_crc(header);
  auto bytes = wire::encode(header);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

TEST(Channel, TooLongFrameEndsTheConnection) {
  Ends ends;
  auto [a, b] = ends.connections();
  wire::FrameHeader header;
  header.body_length = 1 << 30;
  ASSERT_TRUE(a->write(frame(header, {})));
  const Error reason = ends.right.run(b, 0);
  EXPECT_EQ(reason.errno_value, EPROTO);
  EXPECT_NE(reason.message.find("longer than"), std::string::npos) << reason.message;
}

TEST(Channel, FrameAfterAGapInTheSequenceIsNotHandled) {
  Ends ends;
  auto [a, b] = ends.connections();
  wire::FrameHeader header;
  header.type = wire::MessageType::kForget;
  for (uint64_t sequence : {1, 2, 4}) {
    header.sequence = sequence;
    ASSERT_TRUE(a->write(frame(header, wire::encode(wire::Forget{sequence}))));
  }
  EXPECT_EQ(ends.right.run(b, 0).errno_value, EPROTO);
  EXPECT_EQ(ends.received, (std::vector<uint64_t>{1, 2}));
}

TEST(Channel, HeartbeatDetectsALostFrame) {
  Ends ends;
  auto [a, b] = ends.connections();
  wire::FrameHeader header;
  header.sequence = 1;
  ASSERT_TRUE(a->write(frame(header, {})));
  const Error reason = ends.right.run(b, 0);
  EXPECT_NE(reason.message.find("out of sequence"), std::string::npos) << reason.message;
  EXPECT_FALSE(ends.right.failed());
}

TEST(Channel, AcknowledgementOfAnUnsentMessageEndsTheConnection) {
  Ends ends;
  auto [a, b] = ends.connections();
  wire::FrameHeader header;
  header.acknowledged = 5;
  ASSERT_TRUE(a->write(frame(header, {})));
  const Error reason = ends.right.run(b, 0);
  EXPECT_NE(reason.message.find("not sent"), std::string::npos) << reason.message;
  EXPECT_FALSE(ends.right.failed());
}

TEST(Channel, IncompleteFrameDoesNotKeepTheConnectionAlive) {
  ChannelOptions options;
  options.timings.heartbeat_interval = milliseconds(10);
  options.timings.connection_silence_max = milliseconds(100);
  Ends ends({}, options);
  auto [a, b] = ends.connections();
  std::atomic<bool> done = false;
  std::thread trickle([&, a = a] {
    wire::FrameHeader header;
    header.body_length = 100'000;
    auto bytes = frame(header, {});
    (void)a->write(bytes);
    const std::byte byte{0};
    while (a->write(std::span(&byte, 1))) {
      if (eventually([&] { return done.load(); }, milliseconds(10))) return;
    }
  });
  std::thread guard([&, b = b] {
    eventually([&] { return done.load(); }, milliseconds(3000));
    b->shut_down();
  });
  const auto begin = Clock::now();
  ends.right.run(b, 0);
  EXPECT_LT(Clock::now() - begin, milliseconds(2000));
  done = true;
  trickle.join();
  guard.join();
}

// An example is the goodbye of a source. A heartbeat that fails at the same time must not lose it.
TEST(Channel, MessagesThatThePeerSentBeforeClosingAreHandled) {
  Ends ends;
  auto [a, b] = ends.connections();
  ends.network.set_link(false);  // b receives nothing yet
  wire::FrameHeader header;
  header.type = wire::MessageType::kForget;
  header.sequence = 1;
  ASSERT_TRUE(a->write(frame(header, wire::encode(wire::Forget{1}))));
  a->shut_down();
  std::thread right([&, b = b] { ends.right.run(b, 0); });
  EXPECT_TRUE(eventually([&] { return ends.right.connected(); }));
  EXPECT_TRUE(eventually([&] { return !ends.right.connected(); }));  // a heartbeat failed
  ends.network.set_link(true);
  right.join();
  EXPECT_EQ(ends.received, std::vector<uint64_t>{1});
}

TEST(Channel, SilenceEndsTheConnection) {
  ChannelOptions options;
  options.timings.heartbeat_interval = milliseconds(10);
  options.timings.connection_silence_max = milliseconds(50);
  Ends ends({}, options);
  auto [a, b] = ends.connections();
  EXPECT_EQ(ends.right.run(b, 0).errno_value, ETIMEDOUT);
}

TEST(Channel, HelloWithAnOutdatedSequenceEndsTheConnectionButNotTheSession) {
  Ends ends;
  ASSERT_TRUE(ends.left.send(wire::Forget{1}));
  ends.join();
  ASSERT_TRUE(eventually([&] { return ends.count() == 1; }));
  ASSERT_TRUE(ends.right.send(wire::Forget{1}));  // this message carries the acknowledgement
  ASSERT_TRUE(eventually([&] { return ends.left.received_sequence() == 1; }));
  ends.left.disconnect();
  ends.right.disconnect();
  for (auto& thread : ends.threads) thread.join();
  ends.threads.clear();
  auto [a, b] = ends.connections();
  // The sequence number from before the first connection.
  EXPECT_EQ(ends.left.run(a, 0).errno_value, EPROTO);
  EXPECT_FALSE(ends.left.failed());
}

TEST(Channel, FailingTheChannelWakesBlockedSendersAndEndsItsRunLoop) {
  ChannelOptions options = Ends::patient();
  options.outbox_capacity_bytes = 256;
  Ends ends({}, options);
  std::atomic<int> woken = 0;
  std::vector<std::thread> senders;
  for (int i = 0; i < 3; ++i) {
    senders.emplace_back([&] {
      Status status;
      while (status) status = ends.left.send(wire::Forget{1});
      EXPECT_EQ(status.error().message, "enough");
      ++woken;
    });
  }
  EXPECT_TRUE(eventually([&] { return ends.left_is_full(); }));
  EXPECT_EQ(woken, 0);
  ends.left.fail(Error{EIO, "enough"});
  for (auto& sender : senders) sender.join();
  auto [a, b] = ends.connections();
  EXPECT_EQ(ends.left.run(a, 0).message, "enough");
}

TEST(Channel, ErrorOfTheHandlerFailsTheChannel) {
  Ends ends;
  ASSERT_TRUE(ends.left.send(wire::Forget{1}, {}));
  FaultyNetwork network;
  Channel strict(Ends::patient(), [](auto, auto) -> Status { return failure(EPROTO, "no"); });
  auto [a, b] = ends.connections();
  std::thread left([&, a = a] { ends.left.run(a, 0); });
  EXPECT_EQ(strict.run(b, 0).message, "no");
  EXPECT_EQ(strict.failed()->message, "no");
  EXPECT_FALSE(strict.send(wire::Forget{2}));
  left.join();
}

TEST(Channel, ExceptionOfTheHandlerFailsTheChannel) {
  Ends ends;
  ASSERT_TRUE(ends.left.send(wire::Forget{1}));
  Channel throwing(Ends::patient(), [](auto, auto) -> Status { throw std::bad_alloc(); });
  auto [a, b] = ends.connections();
  std::thread left([&, a = a] { ends.left.run(a, 0); });
  EXPECT_EQ(throwing.run(b, 0).errno_value, EIO);
  EXPECT_NE(throwing.failed()->message.find("bad_alloc"), std::string::npos);
  left.join();
}

TEST(Channel, TimeSpentInTheMessageHandlerDoesNotCountAsSilenceOfThePeer) {
  std::promise<void> handling, go_on;
  Channel busy(Ends::patient(), [&](auto, auto) -> Status {
    handling.set_value();
    go_on.get_future().wait();
    return {};
  });
  Ends ends;
  ASSERT_TRUE(ends.left.send(wire::Forget{1}));
  auto [a, b] = ends.connections();
  std::thread left([&, a = a] { ends.left.run(a, 0); });
  std::thread right([&, b = b] { busy.run(b, 0); });
  handling.get_future().wait();
  const auto look_at = Clock::now();
  EXPECT_GE(busy.last_received(), look_at) << "frames may wait unread";
  go_on.set_value();
  busy.fail(Error{ECANCELED, "the test ends"});
  ends.left.fail(Error{ECANCELED, "the test ends"});
  left.join();
  right.join();
  EXPECT_GE(busy.last_received(), look_at);
  EXPECT_LE(busy.last_received(), Clock::now());
}

TEST(Channel, PayloadOnAnotherConnectionShowsThatThePeerIsAlive) {
  Channel channel(Ends::patient(), [](auto, auto) { return Status{}; });
  const auto before = Clock::now();
  EXPECT_LT(channel.last_received(), before);
  channel.note_received();
  EXPECT_GE(channel.last_received(), before);
}

}  // namespace
}  // namespace ppmr
