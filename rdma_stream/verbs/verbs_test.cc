// Tests the verbs mover over a fabric inside this process: moving bytes, faults of the fabric,
// malicious peers, removed devices.

#include <gtest/gtest.h>

#include <thread>

#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/session_proof.h"
#include "rdma_stream/verbs/verbs_puller.h"
#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using wire::Transport;

constexpr size_t kChunk = kChunkSizeMinBytes;
// The peer timeout of tests that wait until it expires. It is long enough for a busy machine.
constexpr milliseconds kShortPeerTimeout{2000};

// Every test checks at its end that the sink's contract was kept, and that no memory is registered
// and no connection is open.
class Verbs : public testing::Test {
 protected:
  StreamRig& rig(RigVerbs verbs = {}, milliseconds peer_timeout = milliseconds(5000)) {
    source_.reset();
    RigOptions options;
    options.verbs = verbs;
    options.peer_timeout = peer_timeout;
    rig_ = std::make_unique<StreamRig>(std::move(options));
    return *rig_;
  }
  // Opens a session, in place of the previous one, and claims a checkpoint.
  TestSource& open_source(const TestSourceOptions& options = {}) {
    source_.reset();
    EXPECT_TRUE(eventually([&] { return rig_->sink().open_sessions() == 0; }));
    source_ = std::make_unique<TestSource>(*rig_, options);
    EXPECT_TRUE(source_->opened()) << source_->opened().error().message;
    EXPECT_TRUE(source_->claim("checkpoint-" + std::to_string(++claims_)));
    return *source_;
  }
  // Writes a file of `chunks` chunks and compares it with the landed bytes.
  void move_file(TestSource& source, const std::string& name, size_t chunks) {
    TestFile& file = **source.make_file(name);
    ASSERT_TRUE(source.write(file, 0, chunks * kChunk, random_));
    const Status drained = source.drain(file);
    ASSERT_TRUE(drained) << drained.error().message;
    EXPECT_EQ(rig_->sink().content(file.node), file.model);
  }
  bool writing_fails(TestSource& source) {
    const auto file = source.make_file("fails");
    return !file || !source.write(**file, 0, 100 * kChunk, random_) || !source.drain(**file);
  }
  void set_links(bool up) {
    rig_->verbs().set_link(up);
    rig_->network().set_link(up);
  }
  Transport transport_at_target() {
    const auto sessions = rig_->receiver().sessions();
    return sessions.size() == 1 ? sessions[0].transport : Transport::kNone;
  }
  static Transport transport_at_source(TestSource& source) {
    return source.sender().counters().transport;
  }
  // Moves a file over TCP and checks that both sides report it.
  void expect_tcp(TestSource& source) {
    const uint64_t before = rig_->verbs().counts().bytes_copied;
    move_file(source, "over-tcp", 10);
    EXPECT_EQ(rig_->verbs().counts().bytes_copied, before);
    EXPECT_EQ(transport_at_target(), Transport::kTcp);
    EXPECT_TRUE(eventually([&] { return transport_at_source(source) == Transport::kTcp; }));
  }
  void expect_verbs(TestSource& source) {
    const uint64_t before = rig_->verbs().counts().bytes_copied;
    move_file(source, "over-verbs", 10);
    EXPECT_GT(rig_->verbs().counts().bytes_copied, before);
    EXPECT_EQ(transport_at_target(), Transport::kVerbs);
    EXPECT_EQ(transport_at_source(source), Transport::kVerbs);
  }
  void TearDown() override {
    source_.reset();
    if (!rig_) return;
    rig_->end_receiver();
    EXPECT_EQ(rig_->sink().violations(), std::vector<std::string>{});
    EXPECT_EQ(rig_->sink().chunks_in_flight(), 0u);
    EXPECT_EQ(rig_->verbs().counts().live_queues, 0u);
    EXPECT_EQ(rig_->verbs_source()->counters().registered_regions, 0u);
    rig_->verbs_target().close();
    const auto left = rig_->verbs().counts();
    EXPECT_EQ(left.live_regions, 0u);
    EXPECT_EQ(left.live_domains, 0u);
    EXPECT_EQ(left.live_bytes, 0u);
  }

  std::mt19937_64 random_{1};
  std::unique_ptr<StreamRig> rig_;
  std::unique_ptr<TestSource> source_;
  int claims_ = 0;
};

// ---- Moving ------------------------------------------------------------------------------------

TEST_F(Verbs, TransfersAllBytesExceptInlineChunksByRdmaRead) {
  rig();
  TestSource& source = open_source();
  EXPECT_EQ(transport_at_source(source), Transport::kVerbs);
  EXPECT_EQ(transport_at_target(), Transport::kVerbs);
  move_file(source, "file", 50);
  ASSERT_TRUE(source.seal());
  const OutletCounters sent = source.sender().counters();
  const auto counts = rig_->verbs().counts();
  // All bytes except those of inline chunks, each byte once.
  EXPECT_EQ(rig_->verbs_target().traffic().bytes_read, counts.bytes_copied);
  EXPECT_GE(counts.bytes_copied + sent.inline_chunks * wire::kInlineMaxBytes, sent.verified_bytes);
  EXPECT_LE(counts.bytes_copied, sent.verified_bytes);
  // These are the control connection and the TCP streams, which stay idle.
  EXPECT_LE(rig_->network().counts().connections, 1u + 2u);
}

TEST_F(Verbs, RegistersMemoryOnceForAnyNumberOfBytes) {
  rig();
  TestSource& source = open_source();
  move_file(source, "first", 4);
  ASSERT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 2; }));
  const auto before = rig_->verbs().counts();
  EXPECT_EQ(before.live_regions, 2u);  // regions of the pool and of the store
  EXPECT_EQ(before.live_bytes, source.pool().memory().size() + rig_->sink().memory().size());
  for (int i = 0; i < 5; ++i) move_file(source, "file-" + std::to_string(i), 40);
  const auto after = rig_->verbs().counts();
  EXPECT_EQ(after.live_regions, before.live_regions);
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.regions_made, before.regions_made);
  EXPECT_EQ(after.connections, before.connections);
  EXPECT_EQ(rig_->verbs_target().counters().registered_bytes, rig_->sink().memory().size());
  EXPECT_EQ(rig_->verbs_source()->counters().registered_bytes, source.pool().memory().size());
}

TEST_F(Verbs, SplitsReadsForDevicesThatAllowOneScatterEntryPerRead) {
  RigVerbs verbs;
  verbs.fabric.limits.pieces_max = 1;
  rig(verbs);
  move_file(open_source(), "file", 20);
  // The sink has blocks of 16 KiB.
  EXPECT_GE(rig_->verbs().counts().reads, 20 * kChunk / (16 << 10));
}

TEST_F(Verbs, SplitsReadsThatExceedTheDevicesMaximumMessageSize) {
  RigVerbs verbs;
  verbs.fabric.limits.read_bytes_max = 4096;
  rig(verbs);
  move_file(open_source(), "file", 10);
}

TEST_F(Verbs, UsesAllRailsOfBothSides) {
  RigVerbs verbs;
  verbs.fabric.rails = 3;
  rig(verbs);
  TestSource& source = open_source({.stream_count = 2});
  EXPECT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 3; }));
  move_file(source, "file", 60);
  EXPECT_EQ(rig_->verbs().counts().live_regions, 6u);
}

TEST_F(Verbs, GivesEachSourceItsOwnProtectionDomain) {
  rig();
  TestSource one(*rig_, {.name = "one"}), two(*rig_, {.name = "two"});
  ASSERT_TRUE(one.claim("first"));
  ASSERT_TRUE(two.claim("second"));
  // One for each session, and the domain of the store.
  EXPECT_EQ(rig_->verbs().counts().live_domains, 3u);
  TestFile& first = **one.make_file("file");
  std::thread writer([&] {
    std::mt19937_64 random(2);
    TestFile& file = **two.make_file("other");
    EXPECT_TRUE(two.write(file, 0, 30 * kChunk, random));
    EXPECT_TRUE(two.seal());
  });
  ASSERT_TRUE(one.write(first, 0, 30 * kChunk, random_));
  EXPECT_TRUE(one.seal());
  writer.join();
  EXPECT_EQ(rig_->verbs_target().traffic().strange_completions, 0u);
}

TEST_F(Verbs, TwoHundredSessionsLeakNoQueuePairMemoryRegionOrThread) {
  rig();
  const size_t threads = threads_of_this_process();
  for (int i = 0; i < 200; ++i) {
    TestSource& source = open_source({.pool_slots = 2, .stream_count = 1});
    TestFile& file = **source.make_file("file");
    ASSERT_TRUE(source.write(file, 0, 2 * kChunk, random_));
    ASSERT_TRUE(source.seal());
  }
  source_.reset();
  EXPECT_TRUE(eventually([&] { return rig_->receiver().sessions().empty(); }));
  const auto counts = rig_->verbs().counts();
  EXPECT_EQ(counts.live_queues, 0u);
  EXPECT_EQ(counts.live_regions, 1u);  // the region of the store
  EXPECT_EQ(counts.live_domains, 1u);
  EXPECT_TRUE(eventually([&] { return threads_of_this_process() <= threads; }));
}

// ---- Choosing the transport --------------------------------------------------------------------

struct Choice {
  TransportMode source;
  TransportMode target;
  Transport expected;
};

TEST_F(Verbs, RespectsTheTransportModesOfBothSides) {
  using enum TransportMode;
  for (const Choice& choice : {
           Choice{kAuto, kAuto, Transport::kVerbs},
           Choice{kVerbs, kAuto, Transport::kVerbs},
           Choice{kAuto, kVerbs, Transport::kVerbs},
           Choice{kTcp, kAuto, Transport::kTcp},
           Choice{kAuto, kTcp, Transport::kTcp},
           Choice{kTcp, kVerbs, Transport::kNone},
           Choice{kVerbs, kTcp, Transport::kNone},
       }) {
    SCOPED_TRACE(std::string(to_string(choice.source)) + " - " + to_string(choice.target));
    RigVerbs verbs;
    verbs.source = choice.source;
    verbs.target = choice.target;
    rig(verbs);
    if (choice.expected == Transport::kNone) {
      TestSource source(*rig_, {});
      ASSERT_FALSE(source.opened());
      EXPECT_NE(source.opened().error().message.find("--transport verbs, but"), std::string::npos);
      continue;
    }
    TestSource& source = open_source();
    EXPECT_FALSE(source.sender().counters().transport_why.empty());
    choice.expected == Transport::kVerbs ? expect_verbs(source) : expect_tcp(source);
  }
}

TEST_F(Verbs, UsesTcpIfNoRdmaConnectionOpensAndReturnsToVerbsInTheNextSession) {
  rig({}, kShortPeerTimeout).verbs().set_link(false);
  TestSource& source = open_source();
  rig_->verbs().set_link(true);
  expect_tcp(source);
  EXPECT_EQ(rig_->verbs().counts().connections, 0u);
  expect_verbs(open_source());
}

TEST_F(Verbs, RefusesAVerbsOnlySessionAndReportsWhyIfNoConnectionOpens) {
  RigVerbs verbs;
  verbs.source = TransportMode::kVerbs;
  rig(verbs, kShortPeerTimeout).verbs().set_link(false);
  TestSource source(*rig_, {});
  ASSERT_FALSE(source.opened());
  EXPECT_NE(source.opened().error().message.find("no answer"), std::string::npos)
      << source.opened().error().message;
}

TEST_F(Verbs, UsesTcpWhenMemoryCannotBeRegistered) {
  RigVerbs verbs;
  verbs.fabric.registered_max_bytes = 0;
  rig(verbs);
  TestSource& source = open_source();
  EXPECT_NE(source.sender().counters().transport_why.find("memlock"), std::string::npos);
  expect_tcp(source);
}

// ---- Faults of the fabric ----------------------------------------------------------------------

class VerbsFault : public Verbs, public testing::WithParamInterface<ReadFault> {};

TEST_P(VerbsFault, NeitherLosesNorDuplicatesBytes) {
  rig({}, kShortPeerTimeout);
  TestSource& source = open_source();
  move_file(source, "before", 5);
  rig_->verbs().plan({GetParam(), ReadFault::kNone, ReadFault::kNone, GetParam()});
  move_file(source, "file", 40);
  ASSERT_TRUE(source.seal());
  EXPECT_EQ(rig_->verbs().counts().faults, 2u);
}

INSTANTIATE_TEST_SUITE_P(Of, VerbsFault,
                         testing::Values(ReadFault::kError, ReadFault::kNoAnswer,
                                         ReadFault::kDuplicate, ReadFault::kUnknown,
                                         ReadFault::kLate, ReadFault::kCorrupt,
                                         ReadFault::kDisconnect));

class VerbsSeed : public Verbs, public testing::WithParamInterface<uint64_t> {};

TEST_P(VerbsSeed, SurvivesAllKindsOfFaultsInRandomOrder) {
  RigVerbs verbs;
  verbs.fabric.seed = GetParam();
  verbs.fabric.fault_rate = 0.05;
  verbs.fabric.faults_max = 25;
  verbs.fabric.rails = 1 + GetParam() % 2;
  verbs.fabric.limits.pieces_max = GetParam() % 3 == 0 ? 1 : 16;
  rig(verbs, kShortPeerTimeout);
  random_.seed(GetParam());
  TestSource& source = open_source({.pool_slots = 16, .stream_count = 8});
  for (int i = 0; i < 4; ++i) move_file(source, "file-" + std::to_string(i), 60);
  const Status sealed = source.seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  EXPECT_GT(rig_->verbs().counts().faults, 0u);
  EXPECT_EQ(source.pool().counters().free, source.pool().counters().slots);
}

INSTANTIATE_TEST_SUITE_P(By, VerbsSeed, testing::Range<uint64_t>(1, 9));

TEST_F(Verbs, CountsAndIgnoresUnknownCompletions) {
  rig();
  TestSource& source = open_source();
  move_file(source, "first", 3);
  ASSERT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 2; }));
  rig_->verbs().plan({ReadFault::kDuplicate, ReadFault::kUnknown, ReadFault::kDuplicate});
  move_file(source, "second", 10);
  EXPECT_EQ(rig_->verbs_target().traffic().strange_completions, 3u);
  EXPECT_EQ(rig_->verbs().counts().live_queues, 2u);
}

TEST_F(Verbs, KeepsTheOtherConnectionsWhenOneBreaks) {
  rig();
  TestSource& source = open_source();
  ASSERT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 2; }));
  rig_->verbs().plan({ReadFault::kError});
  move_file(source, "file", 20);
  EXPECT_EQ(rig_->verbs().counts().live_queues, 1u);
  expect_verbs(source);
}

TEST_F(Verbs, FallsBackToTcpUntilTheNextSessionWhenTheLastConnectionBreaks) {
  rig();
  TestSource& source = open_source({.stream_count = 1});
  move_file(source, "before", 10);
  rig_->verbs().plan({ReadFault::kNone, ReadFault::kNone, ReadFault::kDisconnect});
  move_file(source, "file", 40);
  EXPECT_EQ(rig_->verbs().counts().live_queues, 0u);
  expect_tcp(source);
  EXPECT_EQ(rig_->verbs().counts().connections, 1u);
  EXPECT_EQ(rig_->verbs_source()->counters().registered_regions, 0u);
  ASSERT_TRUE(source.seal());
  expect_verbs(open_source());
}

TEST_F(Verbs, EndsAVerbsOnlySessionAndReportsWhyIfTheLastConnectionBreaks) {
  RigVerbs verbs;
  verbs.source = TransportMode::kVerbs;
  rig(verbs);
  TestSource& source = open_source({.stream_count = 1});
  rig_->verbs().plan({ReadFault::kDisconnect});
  EXPECT_TRUE(writing_fails(source));
  EXPECT_TRUE(eventually([&] { return !source.sender().status(); }));
  const std::string message = source.sender().status().error().message;
  EXPECT_NE(message.find("no RDMA connection left"), std::string::npos) << message;
}

TEST_F(Verbs, SurvivesBriefInterruptionsOfTheLink) {
  rig();
  TestSource& source = open_source();
  ASSERT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 2; }));
  TestFile& file = **source.make_file("file");
  for (uint64_t i = 0; i < 5; ++i) {
    set_links(false);
    std::thread writer(
        [&] { EXPECT_TRUE(source.write(file, i * 20 * kChunk, 20 * kChunk, random_)); });
    EXPECT_TRUE(eventually([&] { return source.pool().counters().free == 0; }));
    set_links(true);
    writer.join();
  }
  ASSERT_TRUE(source.seal());
  EXPECT_EQ(rig_->sink().content(file.node), file.model);
  EXPECT_EQ(rig_->verbs().counts().connections, 2u);
}

// If there is no TCP to fall back to, only the peer timeout may end the session.
TEST_F(Verbs, ReadTimeoutIsHalfThePeerTimeoutUnlessTheSessionIsVerbsOnly) {
  for (const bool verbs_only : {false, true}) {
    RigVerbs verbs;
    if (verbs_only) verbs.target = TransportMode::kVerbs;
    rig(verbs, kShortPeerTimeout);
    open_source();
    EXPECT_EQ(rig_->verbs().counts().read_timeout,
              verbs_only ? kShortPeerTimeout : kShortPeerTimeout / 2);
  }
}

TEST_F(Verbs, FailsBothSidesWhenTheLinkStaysCut) {
  rig({}, kShortPeerTimeout);
  TestSource& source = open_source();
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 4 * kChunk, random_));
  set_links(false);
  const auto start = Clock::now();
  EXPECT_FALSE(source.write(file, 4 * kChunk, 100 * kChunk, random_));
  EXPECT_LT(Clock::now() - start, 5 * kShortPeerTimeout);
  EXPECT_TRUE(eventually([&] { return rig_->receiver().sessions().empty(); }));
  EXPECT_TRUE(
      eventually([&] { return source.pool().counters().free == source.pool().counters().slots; }));
  EXPECT_EQ(rig_->verbs().counts().live_queues, 0u);
  EXPECT_EQ(rig_->verbs_source()->counters().registered_regions, 0u);
}

// ---- Removed devices ---------------------------------------------------------------------------

TEST_F(Verbs, FallsBackToTcpWhenTheTargetsDeviceIsRemoved) {
  rig();
  TestSource& source = open_source();
  move_file(source, "before", 10);
  rig_->verbs().remove_target_rail(0);
  move_file(source, "after", 10);
  expect_tcp(source);
  // No object of either device is left.
  EXPECT_TRUE(eventually([&] { return rig_->verbs().counts().live_domains == 0; }));
}

TEST_F(Verbs, FallsBackToTcpWhenTheSourcesDeviceIsRemoved) {
  rig();
  TestSource& source = open_source();
  move_file(source, "before", 10);
  rig_->verbs().remove_source_rail(0);
  EXPECT_EQ(rig_->verbs_source()->counters().registered_regions, 0u);
  move_file(source, "after", 10);
  expect_tcp(source);
}

TEST_F(Verbs, NextSessionUsesTheReturnedDevice) {
  for (const bool of_source : {true, false}) {
    SCOPED_TRACE(of_source);
    rig();
    TestSource& source = open_source();
    move_file(source, "before", 10);
    of_source ? rig_->verbs().remove_source_rail(0) : rig_->verbs().remove_target_rail(0);
    move_file(source, "after", 10);
    expect_tcp(source);
    expect_tcp(open_source());  // the device is still away
    rig_->verbs().return_rails();
    expect_verbs(open_source());
  }
}

TEST_F(Verbs, ContinuesOnTheOtherRailWhenOneIsRemoved) {
  RigVerbs verbs;
  verbs.fabric.rails = 2;
  verbs.source = TransportMode::kVerbs;
  rig(verbs);
  TestSource& source = open_source();
  move_file(source, "before", 20);
  ASSERT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 2; }));
  rig_->verbs().remove_source_rail(1);
  move_file(source, "after", 20);
  expect_verbs(source);
}

TEST_F(Verbs, EndsAVerbsOnlySessionAndReportsWhyIfItsDeviceIsRemoved) {
  RigVerbs verbs;
  verbs.target = TransportMode::kVerbs;
  rig(verbs);
  TestSource& source = open_source();
  move_file(source, "before", 10);
  rig_->verbs().remove_target_rail(0);
  EXPECT_TRUE(writing_fails(source));
  EXPECT_TRUE(eventually([&] { return !source.sender().status(); }));
  EXPECT_NE(source.sender().status().error().message.find("RDMA"), std::string::npos)
      << source.sender().status().error().message;
  EXPECT_EQ(source.pool().counters().free, source.pool().counters().slots);
}

// ---- Malicious peers ---------------------------------------------------------------------------

TEST_F(Verbs, FallsBackToTcpOnAWrongMemoryKey) {
  rig().verbs().forget_source_keys();
  TestSource& source = open_source();
  move_file(source, "file", 10);
  EXPECT_EQ(rig_->verbs().counts().bytes_copied, 0u);
  expect_tcp(source);
}

TEST_F(Verbs, EndsAVerbsOnlySessionOnAWrongMemoryKey) {
  RigVerbs verbs;
  verbs.source = TransportMode::kVerbs;
  rig(verbs).verbs().forget_source_keys();
  EXPECT_TRUE(writing_fails(open_source()));
}

TEST_F(Verbs, RefusesRdmaConnectionsWithoutAProofOfTheSecretOfASession) {
  rig();
  open_source();
  const auto refusal = [&](const wire::RdmaHello& hello) {
    std::array<std::byte, wire::kRdmaHelloBytes> bytes;
    wire::Writer(std::span<std::byte>(bytes))(hello);
    return rig_->verbs().refusal(bytes).message;
  };
  wire::RdmaHello hello;
  EXPECT_EQ(refusal(hello), "no session has the secret of this proof");
  hello.proof = rdma_proof(random_token(), {}, 0, 1);
  EXPECT_EQ(refusal(hello), "no session has the secret of this proof");
  hello.version = wire::kVersion + 1;
  EXPECT_EQ(refusal(hello), "another version of the protocol");
  hello.magic = {'G', 'E', 'T', ' '};
  EXPECT_EQ(refusal(hello), "not a ppmr target");
  EXPECT_EQ(rig_->verbs().refusal({}).message, "not a ppmr target");
  EXPECT_EQ(rig_->verbs_source()->counters().refused, 5u);
}

TEST_F(Verbs, RecordedRdmaConnectionRequestIsRefused) {
  rig();
  open_source({.stream_count = 1});
  const auto recorded = rig_->verbs().latest_private_data();
  ASSERT_FALSE(recorded.empty());
  EXPECT_EQ(rig_->verbs().refusal(recorded).message, "the proof was used before");
  for (size_t bit = 0; bit < wire::kRdmaHelloBytes * 8; ++bit) {
    auto changed = recorded;
    changed[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(rig_->verbs().refusal(changed).message, "") << "bit " << bit;
  }
}

TEST(RdmaSecret, AdmitsEachAttemptOnceAndOnlyBetweenItsAddresses) {
  FaultyVerbs fabric;
  auto source = std::move(VerbsSource::create(fabric.source(), {}).value());
  auto pool = std::move(BufferPool::create(2 * kChunk, kChunk).value());
  auto loan = std::move(source->lend(*pool, 1).value());
  const RailAddress from = fabric.source_address(), to = fabric.target_address();
  const RdmaEnds ends{from.ip, from.port, to.ip};
  const auto refusal = [&](const RdmaEnds& proved, uint16_t stream, uint64_t attempt) {
    wire::RdmaHello hello;
    hello.stream = stream;
    hello.attempt = attempt;
    hello.proof = rdma_proof(loan->offer().secret, proved, stream, attempt);
    return fabric.refusal(wire::encode(hello)).message;
  };
  const std::string wrong = "no session has the secret of this proof";
  RdmaEnds other = ends;
  other.target_ip[15] += 1;
  EXPECT_EQ(refusal(other, 0, 1), wrong);
  other = ends;
  other.source_ip[15] += 1;
  EXPECT_EQ(refusal(other, 0, 1), wrong);
  other = ends;
  other.source_port += 1;
  EXPECT_EQ(refusal(other, 0, 1), wrong);
  EXPECT_EQ(refusal(ends, 0, 2), "");
  EXPECT_EQ(refusal(ends, 0, 2), "the proof was used before");
  EXPECT_EQ(refusal(ends, 0, 1), "the proof was used before");
  EXPECT_EQ(refusal(ends, 0, 0), "the proof was used before");
  EXPECT_EQ(refusal(ends, 1, 1), "") << "another stream";
  EXPECT_EQ(refusal(ends, 0, 3), "");
  EXPECT_EQ(refusal(ends, 8, 1), "the session does not have the stream of this request");
}

TEST(VerbsOffer, IsRefusedIfANumberIsInvalid) {
  wire::TransportOffer good;
  good.pool_address = 1 << 20;
  good.slot_stride = kChunk + 8192;
  good.rail_count = 1;
  good.rails[0].port = 7000;
  ASSERT_TRUE(VerbsPuller::check(good, 8, kChunk));
  const auto refused = [&](auto spoil) {
    wire::TransportOffer offer = good;
    spoil(offer);
    return !VerbsPuller::check(offer, 8, kChunk);
  };
  EXPECT_TRUE(refused([](auto& offer) { offer.rail_count = wire::kRailsMax + 1; }));
  EXPECT_TRUE(refused([](auto& offer) { offer.slot_stride = kChunk - 1; }));
  EXPECT_TRUE(refused([](auto& offer) { offer.slot_stride = uint64_t{1} << 60; }));
  EXPECT_TRUE(refused([](auto& offer) { offer.pool_address = UINT64_MAX - kChunk; }));
  EXPECT_TRUE(refused([](auto& offer) { offer.rails[0].port = 0; }));
}

}  // namespace
}  // namespace ppmr
