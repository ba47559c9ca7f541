#include "rdma_stream/control/channel.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "buffer_pool/crc32c.h"
#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSoon{200};
constexpr milliseconds kNever{60'000};

// Two channels and a network between them that can be cut and joined.
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

  // Joins both ends and runs them in the background.
  void join() {
    auto [a, b] = connections();
    const uint64_t at_left = left.received_sequence(), at_right = right.received_sequence();
    threads.emplace_back([this, a = a, at_right] { left.run(a, at_right); });
    threads.emplace_back([this, b = b, at_left] { right.run(b, at_left); });
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

TEST(Channel, AFullOutboxWaitsAndGoesOn) {
  ChannelOptions options = Ends::patient();
  options.outbox_capacity_bytes = 4 << 10;
  Ends ends({}, options);
  std::atomic<uint64_t> sent = 0;
  std::thread sender([&] {
    for (; sent < 1000; ++sent) ASSERT_TRUE(ends.left.send(wire::Forget{sent}));
  });
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_LT(sent, 200u);  // 4 KiB hold no more
  ends.join();
  sender.join();
  EXPECT_TRUE(eventually([&] { return ends.count() == 1000; }));
}

TEST(Channel, WhatMayWaitGoesWithTheNextMessageOrWhenItIsPushed) {
  ChannelOptions options;
  options.timings.heartbeat_interval = options.timings.connection_silence_max = kNever;
  Ends ends({}, options);
  ends.join();
  ASSERT_TRUE(ends.left.send(wire::Forget{1}));
  EXPECT_TRUE(eventually([&] { return ends.count() == 1; }));
  ASSERT_TRUE(ends.left.send_with_next(wire::Forget{2}));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(ends.count(), 1u);
  ASSERT_TRUE(ends.left.send(wire::Forget{3}));
  EXPECT_TRUE(eventually([&] { return ends.count() == 3; }));
  ASSERT_TRUE(ends.left.send_with_next(wire::Forget{4}));
  ends.left.push();
  EXPECT_TRUE(eventually([&] { return ends.count() == 4; }));
  EXPECT_EQ(ends.received, (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST(Channel, WhatMayWaitGoesWithAHeartbeatAtTheLatest) {
  Ends ends;
  ends.join();
  ASSERT_TRUE(ends.left.send_with_next(wire::Forget{1}));
  EXPECT_TRUE(eventually([&] { return ends.count() == 1; }));
}

TEST(Channel, LargeMessagesAreAcknowledgedBeforeTheOutboxIsFull) {
  ChannelOptions options;
  options.timings.heartbeat_interval = kNever;  // no acknowledgement in passing
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

TEST(Channel, ACorruptedFrameEndsTheConnectionButNotTheSession) {
  FaultOptions faults;
  faults.seed = 1;
  faults.rates.corrupt = 1;
  faults.faults_max = 1;
  Ends ends(faults);
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

// Bytes made by hand, for what no channel would send.
std::vector<std::byte> frame(wire::FrameHeader header, std::span<const std::byte> body) {
  header.body_length =
      header.body_length != 0 ? header.body_length : static_cast<uint32_t>(body.size());
  header.body_crc = crc32c(body);
  header.crc = wire::fields_crc(header);
  auto bytes = wire::encode(header);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

TEST(Channel, AFrameThatIsTooLongEndsTheConnection) {
  Ends ends;
  auto [a, b] = ends.connections();
  wire::FrameHeader header;
  header.body_length = 1 << 30;
  ASSERT_TRUE(a->write(frame(header, {})));
  const Error reason = ends.right.run(b, 0);
  EXPECT_EQ(reason.errno_value, EPROTO);
  EXPECT_NE(reason.message.find("too long"), std::string::npos) << reason.message;
}

TEST(Channel, AFrameTwiceOrOutOfSequenceIsNotHandled) {
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

TEST(Channel, AHeartbeatMissesAFrameThatWasLostBeforeIt) {
  Ends ends;
  auto [a, b] = ends.connections();
  wire::FrameHeader header;
  header.sequence = 1;
  ASSERT_TRUE(a->write(frame(header, {})));
  const Error reason = ends.right.run(b, 0);
  EXPECT_NE(reason.message.find("out of sequence"), std::string::npos) << reason.message;
  EXPECT_FALSE(ends.right.failed());
}

TEST(Channel, AnAcknowledgementOfSomethingNeverSentEndsTheConnection) {
  Ends ends;
  auto [a, b] = ends.connections();
  wire::FrameHeader header;
  header.acknowledged = 5;
  ASSERT_TRUE(a->write(frame(header, {})));
  const Error reason = ends.right.run(b, 0);
  EXPECT_NE(reason.message.find("not sent"), std::string::npos) << reason.message;
  EXPECT_FALSE(ends.right.failed());
}

TEST(Channel, BytesThatTrickleInAreNoSignOfLife) {
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
    while (!done && a->write(std::span(&byte, 1))) std::this_thread::sleep_for(milliseconds(10));
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

// The goodbye of a source: a heartbeat that fails meanwhile must not throw it away.
TEST(Channel, WhatAPeerSaidBeforeItClosedIsHeard) {
  Ends ends;
  auto [a, b] = ends.connections();
  ends.network.set_link(false);  // b hears nothing yet
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

TEST(Channel, AHelloThatComesLateEndsItsConnectionButNotTheSession) {
  Ends ends;
  ASSERT_TRUE(ends.left.send(wire::Forget{1}));
  ends.join();
  ASSERT_TRUE(eventually([&] { return ends.count() == 1; }));
  ASSERT_TRUE(ends.right.send(wire::Forget{1}));  // carries the acknowledgement
  ASSERT_TRUE(eventually([&] { return ends.left.received_sequence() == 1; }));
  ends.left.disconnect();
  ends.right.disconnect();
  for (auto& thread : ends.threads) thread.join();
  ends.threads.clear();
  auto [a, b] = ends.connections();
  EXPECT_EQ(ends.left.run(a, 0).errno_value, EPROTO);  // as known before the first connection
  EXPECT_FALSE(ends.left.failed());
}

TEST(Channel, FailWakesSendersAndRun) {
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
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(woken, 0);
  ends.left.fail(Error{EIO, "enough"});
  for (auto& sender : senders) sender.join();
  auto [a, b] = ends.connections();
  EXPECT_EQ(ends.left.run(a, 0).message, "enough");
}

TEST(Channel, AnErrorOfTheHandlerIsFinal) {
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

}  // namespace
}  // namespace ppmr
