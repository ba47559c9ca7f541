// TLS over a connection: who is let in, who is not and hears why, and a stream that stays one.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "rdma_stream/handshake.h"
#include "rdma_stream/security.h"
#include "rdma_stream/tls_connection.h"
#include "rdma_stream/tls_context.h"
#include "tests/stream_rig.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{5000};

SharedKey key_of(uint8_t byte) {
  SharedKey key;
  key.fill(byte);
  return key;
}

std::shared_ptr<const TlsContext> context_with(uint8_t byte) {
  return std::move(TlsContext::with_shared_key(key_of(byte)).value());
}

// What both sides have of one handshake.
struct Handshakes {
  Result<std::unique_ptr<Connection>> source = failure(EIO, "");
  Result<std::unique_ptr<Connection>> target = failure(EIO, "");
};

struct Tls : testing::Test {
  Tls() : listener(network.listen()), connector(network.connector()) {}

  Handshakes shake(const TlsContext& at_source, const TlsContext& at_target) {
    Handshakes result;
    std::thread target([&] {
      std::shared_ptr<Connection> connection = std::move(*listener->accept());
      result.target = at_target.accept(connection, kPatience);
    });
    result.source = at_source.connect(std::move(*connector->connect(kPatience)), kPatience);
    target.join();
    return result;
  }

  FaultyNetwork network;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Connector> connector;
};

TEST_F(Tls, TheSameKeyOnBothSidesIsLetIn) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source) << source.error().message;
  ASSERT_TRUE(target) << target.error().message;
  EXPECT_EQ((*source)->peer_identity().text(), "tls-psk");
  EXPECT_EQ((*target)->peer_identity().text(), "tls-psk");
}

TEST_F(Tls, AnotherKeyIsRefusedAndBothSidesSaySo) {
  auto [source, target] = shake(*context_with(1), *context_with(2));
  ASSERT_FALSE(source);
  ASSERT_FALSE(target);
  EXPECT_EQ(source.error().errno_value, EACCES);
  EXPECT_EQ(target.error().errno_value, EACCES);
  for (const std::string& message : {source.error().message, target.error().message}) {
    EXPECT_NE(message.find("has another key (ppmr-key-" + key_id(key_of(1))), std::string::npos)
        << message;
  }
}

TEST_F(Tls, BothSidesReadAndWriteAtTheSameTimeAcrossNewKeys) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source && target);
  std::vector<std::thread> threads;
  for (auto* connection : {source->get(), target->get()}) {
    static_cast<TlsConnection*>(connection)->set_records_per_key(7);
    threads.emplace_back([connection] {
      std::mt19937 random(5);
      std::vector<std::byte> bytes(200'000);
      for (int round = 0; round < 30; ++round) {
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        ASSERT_TRUE(connection->write(std::span<const std::byte>(bytes)));
      }
    });
    threads.emplace_back([connection] {
      std::mt19937 random(5);
      std::vector<std::byte> bytes(200'000);
      for (int round = 0; round < 30; ++round) {
        ASSERT_TRUE(connection->read(std::span<std::byte>(bytes)));
        for (auto byte : bytes) ASSERT_EQ(byte, static_cast<std::byte>(random()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(static_cast<TlsConnection*>(source->get())->key_updates(), 10u);
}

TEST_F(Tls, AReadThatTimesOutLeavesTheStreamIntact) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source && target);
  (*source)->set_read_timeout(milliseconds(20));
  std::byte byte{};
  EXPECT_EQ((*source)->read(std::span(&byte, 1)).error().errno_value, ETIMEDOUT);
  const std::byte sent{42};
  ASSERT_TRUE((*target)->write(std::span(&sent, 1)));
  EXPECT_EQ((*source)->peek().value(), sent);
  ASSERT_TRUE((*source)->read(std::span(&byte, 1)));
  EXPECT_EQ(byte, sent);
}

TEST_F(Tls, TheEndOfThePeerIsTheEndOfTheStream) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source && target);
  target->reset();
  std::byte byte{};
  const Status read = (*source)->read(std::span(&byte, 1));
  EXPECT_EQ(read.error().errno_value, ECONNRESET);
}

TEST_F(Tls, ShuttingDownEndsReadersAndWriters) {
  auto [source, target] = shake(*context_with(1), *context_with(1));
  ASSERT_TRUE(source && target);
  std::thread reader([&] {
    std::byte byte{};
    EXPECT_FALSE((*source)->read(std::span(&byte, 1)));
  });
  std::thread writer([&] {
    const std::vector<std::byte> bytes(64 << 10);
    while ((*source)->write(std::span<const std::byte>(bytes))) {
    }
  });
  std::this_thread::sleep_for(milliseconds(20));
  (*source)->shut_down();
  reader.join();
  writer.join();
}

TEST(TlsOverFaults, ADamagedByteEndsTheConnectionAndIsNeverDelivered) {
  FaultyNetwork network({.seed = 3, .rates = {.corrupt = 0.05}});
  auto listener = network.listen();
  auto connector = network.connector();
  const auto context = context_with(1);
  int damaged = 0;
  for (int round = 0; round < 200; ++round) {
    std::unique_ptr<Connection> target_side;
    std::thread target([&] {
      std::shared_ptr<Connection> connection = std::move(*listener->accept());
      if (auto made = context->accept(connection, milliseconds(200)))
        target_side = std::move(*made);
    });
    auto source_side =
        context->connect(std::move(*connector->connect(kPatience)), milliseconds(200));
    target.join();
    if (!source_side || !target_side) continue;
    const std::vector<std::byte> bytes(20'000, std::byte{7});
    (void)(*source_side)->write(std::span<const std::byte>(bytes));
    target_side->set_read_timeout(milliseconds(50));
    std::vector<std::byte> received(bytes.size());
    if (target_side->read(std::span<std::byte>(received))) {
      ASSERT_EQ(received, bytes);
    } else {
      ++damaged;
    }
  }
  EXPECT_GT(damaged, 5);
}

// ---- Sessions ----------------------------------------------------------------------------------

std::shared_ptr<const Security> security_with_key(uint8_t byte) {
  const auto directory = std::filesystem::path(testing::TempDir());
  static std::atomic<int> number = 0;
  const auto path = directory / ("key-" + std::to_string(++number));
  {
    std::ofstream file(path);
    for (int i = 0; i < 64; ++i) file << byte % 10;
  }
  ::chmod(path.c_str(), 0600);
  auto security = Security::load({.key_file = path});
  std::filesystem::remove(path);
  EXPECT_TRUE(security) << security.error().message;
  return std::move(*security);
}

TEST(SecureSession, MovesAFileAndSurvivesCutConnections) {
  for (bool tcp : {false, true}) {
    StreamRig rig({.tcp = tcp, .security = security_with_key(1)});
    TestSource source(rig, {});
    ASSERT_TRUE(source.opened()) << source.opened().error().message;
    EXPECT_EQ(rig.receiver().sessions().at(0).security, "tls-psk");
    EXPECT_EQ(source.sender().counters().security, "tls-psk");
    ASSERT_TRUE(source.claim("checkpoint"));
    TestFile& file = *source.make_file("file").value();
    std::mt19937_64 random(1);
    for (int round = 0; round < 5; ++round) {
      ASSERT_TRUE(source.write(file, file.model.size(), 300'000, random));
      rig.network().cut_all();
    }
    ASSERT_TRUE(source.seal());
    EXPECT_EQ(rig.sink().content(file.node), file.model);
    if (!tcp) {
      EXPECT_GT(source.sender().counters().reconnections, 0u);
    }
  }
}

TEST(SecureSession, AStrangerInPlainTextIsToldWhatIsMissing) {
  StreamRig rig({.security = security_with_key(1)});
  auto connection = std::move(rig.network().connector()->connect(kPatience).value());
  auto welcome = greet_target(
      *connection,
      wire::ControlHello{
          .session = random_token(), .slot_count = 1, .chunk_size_bytes = 65536, .stream_count = 1},
      kPatience);
  ASSERT_FALSE(welcome);
  EXPECT_EQ(welcome.error().errno_value, EACCES);
  EXPECT_NE(welcome.error().message.find("--key-file"), std::string::npos);
  EXPECT_EQ(rig.sink().sessions_opened(), 0u);
}

TEST(SecureSession, ASourceWithAKeyIsToldThatTheTargetHasNone) {
  StreamRig rig;
  auto connector = security_with_key(1)->secure(rig.network().connector());
  auto connection = connector->connect(kPatience);
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().errno_value, EACCES);
  EXPECT_NE(connection.error().message.find("this target has none"), std::string::npos)
      << connection.error().message;
}

}  // namespace
}  // namespace ppmr
