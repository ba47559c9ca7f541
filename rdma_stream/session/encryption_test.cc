// Tests that an attacker who controls the network between the sides of an authenticated session can
// neither read nor change its chunks.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "rdma_stream/session/protection.h"
#include "tests/stream/greeting.h"
#include "tests/stream/stream_rig.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr size_t kChunk = kChunkSizeMinBytes;
const std::string kSecret = "correct horse battery staple";

std::shared_ptr<const Security> with_key() {
  SharedKey key;
  key.fill(42);
  return std::move(Security::with_shared_key(key).value());
}

// Returns `length` bytes that repeat the secret.
std::vector<std::byte> secrets(size_t length) {
  std::vector<std::byte> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = std::byte(kSecret[i % kSecret.size()]);
  return bytes;
}

struct Encryption : testing::Test {
  Encryption() { spdlog::set_level(spdlog::level::off); }
  ~Encryption() override {
    spdlog::set_level(spdlog::level::info);
    if (!rig) return;
    source.reset();
    rig->end_receiver();
    EXPECT_EQ(rig->sink().violations(), std::vector<std::string>{});
    EXPECT_EQ(rig->sink().chunks_in_flight(), 0u);
  }
  void open(RigOptions options = {}, TestSourceOptions source_options = {}) {
    if (!options.security->authenticates()) options.security = with_key();
    options.wiretap = &wiretap;
    rig = std::make_unique<StreamRig>(std::move(options));
    source = std::make_unique<TestSource>(*rig, source_options);
    ASSERT_TRUE(source->opened()) << source->opened().error().message;
    ASSERT_TRUE(source->claim("checkpoint"));
  }
  SessionReport at_target() { return rig->receiver().sessions().at(0); }
  void expect_encryption(const std::string& encryption) {
    EXPECT_EQ(source->sender().counters().encryption, encryption);
    EXPECT_EQ(at_target().encryption, encryption);
  }
  bool saw_secret() { return wiretap.saw(std::as_bytes(std::span(kSecret))); }

  std::mt19937_64 random{1};
  Wiretap wiretap;
  std::unique_ptr<StreamRig> rig;
  std::unique_ptr<TestSource> source;
};

// ---- Secrecy -----------------------------------------------------------------------------------

TEST_F(Encryption, SecretIsNowhereInARecordingOfTheNetwork) {
  open();
  expect_encryption("aes-256-gcm");
  TestFile& large = **source->make_file("large");
  TestFile& small = **source->make_file("small");
  ASSERT_TRUE(source->write(large, 0, secrets(40 * kChunk)));
  ASSERT_TRUE(source->write(small, 0, secrets(1000)));
  ASSERT_TRUE(source->drain(large));
  std::vector<std::byte> back(10 * kChunk);
  EXPECT_EQ(source->sender().read_back(large.node, 0, back, {}).value_or(0), back.size());
  EXPECT_EQ(back, secrets(back.size()));
  ASSERT_TRUE(source->seal());
  EXPECT_EQ(rig->sink().content(large.node), large.model);
  EXPECT_EQ(rig->sink().content(small.node), small.model);
  EXPECT_GT(wiretap.recorded_bytes(), 40 * kChunk);
  EXPECT_FALSE(saw_secret());
}

// A target without memory drops the bytes of an inline chunk, and later pulls them over a data
// connection.
class LateInlineChunk : public Encryption, public testing::WithParamInterface<bool> {};

TEST_P(LateInlineChunk, IsSecretUnlessBothSidesTrustTheFabric) {
  const bool trusted = GetParam();
  RigOptions options;
  options.source_trusts_fabric = options.target_trusts_fabric = trusted;
  options.sink = {.capacity_bytes = 0, .wait_for_space = true};
  open(options);
  TestFile& small = **source->make_file("small");
  ASSERT_TRUE(source->write(small, 0, secrets(1000)));
  ASSERT_TRUE(eventually([&] { return at_target().waits_for_space > 0; }));
  rig->sink().raise_capacity(1 << 20);
  rig->receiver().space_freed();
  ASSERT_TRUE(source->seal());
  EXPECT_EQ(source->sender().counters().inline_chunks, 1u);
  EXPECT_EQ(rig->sink().content(small.node), small.model);
  EXPECT_EQ(saw_secret(), trusted);
}

INSTANTIATE_TEST_SUITE_P(Fabric, LateInlineChunk, testing::Bool(),
                         [](auto& info) { return info.param ? "Trusted" : "Untrusted"; });

TEST_F(Encryption, AnnouncedSlotsHoldNoPlaintext) {
  open();
  std::atomic<bool> landing = false, go_on = false;
  rig->sink().set_before_land([&] {
    landing = true;
    eventually([&] { return go_on.load(); });
  });
  TestFile& file = **source->make_file("file");
  ASSERT_TRUE(source->write(file, 0, secrets(4 * kChunk)));
  ASSERT_TRUE(eventually([&] { return landing.load(); }));
  const auto pool = source->pool().memory();
  const auto secret = std::as_bytes(std::span(kSecret));
  EXPECT_EQ(std::search(pool.begin(), pool.end(), secret.begin(), secret.end()), pool.end());
  go_on = true;
  ASSERT_TRUE(source->seal());
  EXPECT_EQ(rig->sink().content(file.node), file.model);
}

TEST_F(Encryption, BothSidesMustTrustTheFabricToSendPlaintext) {
  for (const bool source_trusts : {false, true}) {
    for (const bool target_trusts : {false, true}) {
      RigOptions options;
      options.source_trusts_fabric = source_trusts;
      options.target_trusts_fabric = target_trusts;
      Wiretap tap;
      options.security = with_key();
      options.wiretap = &tap;
      StreamRig rig(options);
      TestSource source(rig, {});
      ASSERT_TRUE(source.claim("checkpoint"));
      TestFile& file = **source.make_file("file");
      ASSERT_TRUE(source.write(file, 0, secrets(3 * kChunk)));
      const bool plain = source_trusts && target_trusts;
      const auto at_source = source.sender().counters();
      const auto at_target = rig.receiver().sessions().at(0);
      ASSERT_TRUE(source.seal());
      EXPECT_EQ(rig.sink().content(file.node), file.model);
      EXPECT_EQ(at_source.encryption, plain ? "none" : "aes-256-gcm");
      EXPECT_EQ(at_target.encryption, at_source.encryption);
      EXPECT_EQ(tap.saw(std::as_bytes(std::span(kSecret))), plain);
      const std::string lone = "the other side does not have --trusted-fabric";
      EXPECT_EQ(at_source.encryption_why == lone, source_trusts && !target_trusts);
      EXPECT_EQ(at_target.encryption_why == lone, target_trusts && !source_trusts);
      EXPECT_EQ(at_source.encryption_why == "both sides have --trusted-fabric", plain);
    }
  }
}

TEST(PlainSession, HasNoEncryptionAndReportsTheReason) {
  StreamRig rig;
  TestSource source(rig, {});
  EXPECT_EQ(source.sender().counters().encryption, "none");
  EXPECT_EQ(source.sender().counters().encryption_why, "the peers do not authenticate");
  EXPECT_EQ(rig.receiver().sessions().at(0).encryption, "none");
}

// ---- Genuineness -------------------------------------------------------------------------------

// The attacker flips one bit in the first pull of each chunk. The second pull is genuine.
TEST_F(Encryption, TenThousandFlippedBitsAreRefused) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint64_t kFlips = 1000;
#else
  constexpr uint64_t kFlips = 10'000;
#endif
  constexpr size_t kLength = 17'000;  // too long for an inline chunk
  open({}, {.pool_slots = 1, .stream_count = 1});
  uint64_t damaged = 0;
  std::vector<std::byte> last;  // as it was sent
  std::mt19937_64 positions(random());
  wiretap.set_tamper([&](std::span<std::byte> payload) {
    // The chunk is pulled again. On a loaded machine this also happens without damage.
    if (std::equal(payload.begin(), payload.end(), last.begin(), last.end())) return;
    last.assign(payload.begin(), payload.end());
    const uint64_t bit = positions() % (payload.size() * 8);
    payload[bit / 8] ^= std::byte{1} << (bit % 8);
    ++damaged;
  });
  TestFile& file = **source->make_file("file");
  for (uint64_t chunk = 0; chunk < kFlips; ++chunk) {
    ASSERT_TRUE(source->write(file, chunk % 100 * kLength, kLength, random));
  }
  ASSERT_TRUE(source->drain(file));
  EXPECT_EQ(damaged, kFlips);
  // On a loaded machine, a genuine pull may overtake a damaged one, which is then not opened.
  EXPECT_LE(rig->receiver().totals().aead_failures, kFlips);
  EXPECT_GE(rig->receiver().totals().aead_failures, kFlips - kFlips / 100);
  EXPECT_GE(at_target().pulled_again, kFlips);
  EXPECT_EQ(at_target().chunks, kFlips);
  ASSERT_TRUE(source->seal());
  EXPECT_EQ(rig->sink().content(file.node), file.model);
}

TEST_F(Encryption, ChunkThatIsAlwaysDamagedFailsItsFileAndNeverLands) {
  open();
  std::atomic<int> pulls = 0;
  wiretap.set_tamper([&](std::span<std::byte> payload) {
    ++pulls;
    payload.back() ^= std::byte{0x80};
  });
  TestFile& file = **source->make_file("file");
  (void)source->write(file, 0, kChunk / 2, random);
  const Status drained = source->drain(file);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().errno_value, EIO);
  EXPECT_EQ(pulls, 3);
  EXPECT_EQ(rig->receiver().totals().aead_failures, 3u);
  EXPECT_EQ(rig->receiver().totals().crc_failures, 0u);
  EXPECT_EQ(rig->sink().content(file.node)->size(), 0u);
  EXPECT_FALSE(source->seal());
  EXPECT_FALSE(rig->sink().sealed(source->checkpoint()));
  EXPECT_TRUE(source->sender().status()) << "the session goes on";
}

// The attacker answers with the earlier bytes of this place of this file.
TEST_F(Encryption, ReplayedChunkIsRefused) {
  open();
  std::vector<std::byte> recorded;
  wiretap.set_tamper(
      [&](std::span<std::byte> payload) { recorded.assign(payload.begin(), payload.end()); });
  TestFile& file = **source->make_file("file");
  ASSERT_TRUE(source->write(file, 0, secrets(kChunk / 2)));
  ASSERT_TRUE(source->drain(file));
  ASSERT_EQ(recorded.size(), kChunk / 2);
  wiretap.set_tamper([&](std::span<std::byte> payload) {
    std::copy(recorded.begin(), recorded.end(), payload.begin());
  });
  (void)source->write(file, 0, kChunk / 2, random);
  const Status drained = source->drain(file);
  ASSERT_FALSE(drained);
  EXPECT_EQ(drained.error().errno_value, EIO);
  EXPECT_EQ(at_target().chunks, 1u);
}

// The attacker answers each read with the payload of the previous one, as long as it has the same
// length.
TEST_F(Encryption, ReorderedChunksAreRefused) {
  open({}, {.stream_count = 1});
  std::vector<std::byte> held;
  wiretap.set_tamper([&](std::span<std::byte> payload) {
    std::vector<std::byte> now(payload.begin(), payload.end());
    if (held.size() == payload.size()) std::copy(held.begin(), held.end(), payload.begin());
    held = std::move(now);
  });
  TestFile& file = **source->make_file("file");
  for (uint64_t i = 0; i < 2; ++i) {
    (void)source->write(file, i * kChunk / 2, kChunk / 2, random);
  }
  (void)source->drain(file);
  // The first chunk arrives unchanged. The attacker replaces the second chunk by the first one.
  // When the target pulls it again, the attacker sends the genuine bytes.
  EXPECT_GE(at_target().pulled_again, 1u);
  for (const TestFile& one : source->files()) {
    const auto content = rig->sink().content(one.node);
    for (size_t i = 0; i < content->size(); ++i) {
      ASSERT_TRUE((*content)[i] == one.model[i] || (*content)[i] == std::byte{0}) << i;
    }
  }
}

// The target refuses bytes of one session in another session with the same shared key.
TEST_F(Encryption, ChunkOfAnotherSessionIsRefused) {
  std::vector<std::byte> recorded;
  for (const bool replays : {false, true}) {
    if (source) {
      source.reset();
      rig->end_receiver();
    }
    open();
    wiretap.set_tamper([&, replays](std::span<std::byte> payload) {
      if (replays) {
        std::copy(recorded.begin(), recorded.end(), payload.begin());
      } else {
        recorded.assign(payload.begin(), payload.end());
      }
    });
    TestFile& file = **source->make_file("file");
    (void)source->write(file, 0, secrets(kChunk / 2));
    EXPECT_EQ(source->drain(file).has_value(), !replays);
  }
}

TEST_F(Encryption, SessionContinuesWithItsKeyAfterReconnections) {
  open();
  TestFile& file = **source->make_file("file");
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(source->write(file, 0, 20 * kChunk, random));
    rig->network().cut_all();
  }
  const Status sealed = source->seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  EXPECT_GT(source->sender().counters().reconnections, 0u);
  EXPECT_EQ(rig->sink().content(file.node), file.model);
  expect_encryption("aes-256-gcm");
}

// ---- RDMA --------------------------------------------------------------------------------------

TEST_F(Encryption, WorksOverVerbsWithEveryFault) {
  RigOptions options;
  options.verbs.emplace();
  options.verbs->fabric.seed = 3;
  open(options);
  ASSERT_TRUE(
      eventually([&] { return source->sender().counters().transport == wire::Transport::kVerbs; }));
  expect_encryption("aes-256-gcm");
  TestFile& file = **source->make_file("file");
  for (const ReadFault fault : {ReadFault::kNone, ReadFault::kCorrupt, ReadFault::kDuplicate,
                                ReadFault::kUnknown, ReadFault::kLate, ReadFault::kError}) {
    rig->verbs().plan({fault});
    ASSERT_TRUE(source->write(file, 0, 10 * kChunk, random));
    ASSERT_TRUE(source->drain(file));
    EXPECT_EQ(rig->sink().content(file.node), file.model);
  }
  EXPECT_GE(at_target().pulled_again, 2u);  // kCorrupt, kError
  ASSERT_TRUE(source->seal());
  EXPECT_FALSE(saw_secret());
}

TEST_F(Encryption, ChunkIsTheSameCiphertextAfterAFallBackFromVerbsToTcp) {
  RigOptions options;
  options.verbs.emplace();
  open(options);
  ASSERT_TRUE(
      eventually([&] { return source->sender().counters().transport == wire::Transport::kVerbs; }));
  TestFile& file = **source->make_file("file");
  ASSERT_TRUE(source->write(file, 0, secrets(10 * kChunk)));
  rig->verbs().set_link(false);
  rig->verbs().remove_source_rail(0);
  ASSERT_TRUE(source->write(file, 10 * kChunk, secrets(10 * kChunk)));
  ASSERT_TRUE(source->seal());
  EXPECT_EQ(source->sender().counters().transport, wire::Transport::kTcp);
  EXPECT_EQ(rig->sink().content(file.node), file.model);
  EXPECT_GT(wiretap.recorded_bytes(), 5 * kChunk) << "nothing went over TCP";
  EXPECT_FALSE(saw_secret());
}

// ---- Downgrades --------------------------------------------------------------------------------

// A target that has the key, but does not encrypt.
TEST(Downgrade, SourceRefusesATargetThatDoesNotEncrypt) {
  for (const bool trusts : {false, true}) {
    FaultyNetwork network;
    const auto listener = with_key()->secure(network.listen());
    const auto connector = with_key()->secure(network.connector());
    std::shared_ptr<Connection> control;
    std::thread target([&] {
      std::shared_ptr<Connection> plain = std::move(*listener->accept());
      control = listener->identify(plain, kPatience).value();
      auto hello = receive_handshake(*control, kPatience);
      const auto wish = wire::decode<wire::ControlHello>(hello->body)->protection;
      EXPECT_EQ(wish, trusts ? wire::Protection::kChecksum : wire::Protection::kAes256Gcm);
      (void)send_handshake(*control, wire::HandshakeKind::kWelcome,
                           wire::Welcome{.protection = wire::Protection::kChecksum});
    });
    auto pool = std::move(BufferPool::create(4 * kChunk, kChunk).value());
    auto sender = Sender::open(
        {.stream_count = 1, .peer_timeout = milliseconds(500), .trusted_fabric = trusts}, *pool,
        *connector, {});
    target.join();
    EXPECT_EQ(sender.has_value(), trusts);
    if (!sender) {
      EXPECT_EQ(sender.error().errno_value, EACCES);
      EXPECT_NE(sender.error().message.find("does not encrypt"), std::string::npos)
          << sender.error().message;
    }
    control->shut_down();
    listener->close();
  }
}

TEST(Downgrade, UnknownProtectionOfTheTargetIsRefused) {
  StreamRig rig({.security = with_key()});
  auto connection = rig.connector()->connect(kPatience);
  for (const uint16_t value : {0, 3, 65535}) {
    EXPECT_FALSE(ChunkProtection::create(**connection, {}, {}, static_cast<wire::Protection>(value),
                                         /*trusted_fabric=*/true));
  }
}

TEST(Downgrade, RequestOutOfRangeResultsInEncryption) {
  const PeerIdentity authenticated{.method = PeerIdentity::Method::kSharedKey};
  for (const uint16_t wish : {0, 2, 3, 65535}) {
    EXPECT_EQ(choose_protection(authenticated, static_cast<wire::Protection>(wish), true),
              wire::Protection::kAes256Gcm);
  }
}

}  // namespace
}  // namespace ppmr
