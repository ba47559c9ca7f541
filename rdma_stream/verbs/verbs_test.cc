// The verbs mover over a fabric inside this process: what it moves, and what it makes of a fabric
// that fails, a peer that lies, a device that goes away.

#include <gtest/gtest.h>

#include <thread>

#include "rdma_stream/connection/handshake.h"
#include "tests/stream/stream_rig.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kChunk = kChunkSizeMinBytes;
// A peer timeout that tests wait for, and that a busy machine still keeps.
constexpr milliseconds kShort{2000};

class Verbs : public testing::Test {
 protected:
  StreamRig& rig(RigVerbs verbs = {}, milliseconds peer_timeout = milliseconds(5000)) {
    RigOptions options;
    options.verbs = verbs;
    options.peer_timeout = peer_timeout;
    rig_ = std::make_unique<StreamRig>(std::move(options));
    return *rig_;
  }
  // Writes a file of `chunks` chunks and compares what arrived.
  void move_file(TestSource& source, const std::string& name, size_t chunks) {
    TestFile& file = **source.make_file(name);
    ASSERT_TRUE(source.write(file, 0, chunks * kChunk, random_));
    const Status drained = source.drain(file);
    ASSERT_TRUE(drained) << drained.error().message;
    EXPECT_EQ(rig_->sink().content(file.node), file.model);
  }
  wire::Transport transport_of_session() {
    const auto sessions = rig_->receiver().sessions();
    return sessions.size() == 1 ? sessions[0].transport : wire::Transport::kNone;
  }
  void TearDown() override {
    if (!rig_) return;
    rig_->end_receiver();
    EXPECT_EQ(rig_->sink().violations(), std::vector<std::string>{});
    EXPECT_EQ(rig_->sink().chunks_under_way(), 0u);
    // The sources of a test end before it does, and with them all that was lent to them.
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
};

// ---- Moving ------------------------------------------------------------------------------------

TEST_F(Verbs, BytesArriveByReadsAlone) {
  rig();
  {
    TestSource source(*rig_, {});
    ASSERT_TRUE(source.opened()) << source.opened().error().message;
    ASSERT_TRUE(source.opened()) << source.opened().error().message;
    EXPECT_EQ(source.sender().counters().transport, wire::Transport::kVerbs);
    EXPECT_EQ(transport_of_session(), wire::Transport::kVerbs);
    ASSERT_TRUE(source.claim("checkpoint"));
    move_file(source, "file", 50);
    ASSERT_TRUE(source.seal());
    const OutletCounters sent = source.sender().counters();
    const auto counts = rig_->verbs().counts();
    // All but what travelled in announcements, and that once.
    EXPECT_EQ(rig_->verbs_target().traffic().bytes_read, counts.bytes_copied);
    EXPECT_GE(counts.bytes_copied + sent.inline_chunks * wire::kInlineMaxBytes,
              sent.verified_bytes);
    EXPECT_LE(counts.bytes_copied, sent.verified_bytes);
    // Control, and the streams of TCP, which stay idle.
    EXPECT_LE(rig_->network().counts().connections, 1u + 2u);
  }
}

TEST_F(Verbs, WhatIsRegisteredStaysTheSameHoweverMuchPasses) {
  rig();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "first", 4);
  ASSERT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 2; }));
  const auto before = rig_->verbs().counts();
  EXPECT_EQ(before.live_regions, 2u);  // the pool and the store
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

TEST_F(Verbs, OnePieceAtATimeIsEnough) {  // iWARP
  RigVerbs verbs;
  verbs.fabric.limits.pieces_max = 1;
  rig(verbs);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "file", 20);
  const auto counts = rig_->verbs().counts();
  EXPECT_GE(counts.reads, 20 * kChunk / (16 << 10));  // the sink's blocks
}

TEST_F(Verbs, ShortMessagesAreEnough) {
  RigVerbs verbs;
  verbs.fabric.limits.read_bytes_max = 4096;
  rig(verbs);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "file", 10);
}

TEST_F(Verbs, AllRailsOfBothSidesCarryBytes) {
  RigVerbs verbs;
  verbs.fabric.rails = 3;
  rig(verbs);
  TestSource source(*rig_, {.stream_count = 2});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  EXPECT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 3; }));
  move_file(source, "file", 60);
  EXPECT_EQ(rig_->verbs().counts().live_regions, 6u);
}

TEST_F(Verbs, TwoSourcesReadNothingOfEachOther) {
  rig();
  TestSource one(*rig_, {.name = "one"}), two(*rig_, {.name = "two"});
  ASSERT_TRUE(one.claim("first"));
  ASSERT_TRUE(two.claim("second"));
  EXPECT_EQ(rig_->verbs().counts().live_domains, 3u);  // one for each, and the store's
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

// ---- Choosing ----------------------------------------------------------------------------------

struct Choice {
  TransportMode source;
  TransportMode target;
  wire::Transport expected;
};

TEST_F(Verbs, EachSideHasItsSay) {
  using enum TransportMode;
  for (const Choice& choice : {
           Choice{kAuto, kAuto, wire::Transport::kVerbs},
           Choice{kVerbs, kAuto, wire::Transport::kVerbs},
           Choice{kAuto, kVerbs, wire::Transport::kVerbs},
           Choice{kTcp, kAuto, wire::Transport::kTcp},
           Choice{kAuto, kTcp, wire::Transport::kTcp},
           Choice{kTcp, kVerbs, wire::Transport::kNone},
           Choice{kVerbs, kTcp, wire::Transport::kNone},
       }) {
    SCOPED_TRACE(std::string(to_string(choice.source)) + " - " + to_string(choice.target));
    RigVerbs verbs;
    verbs.source = choice.source;
    verbs.target = choice.target;
    rig(verbs);
    TestSource source(*rig_, {});
    if (choice.expected == wire::Transport::kNone) {
      ASSERT_FALSE(source.opened());
      EXPECT_NE(source.opened().error().message.find("--transport verbs"), std::string::npos)
          << source.opened().error().message;
      continue;
    }
    ASSERT_TRUE(source.opened()) << source.opened().error().message;
    EXPECT_EQ(source.sender().counters().transport, choice.expected);
    EXPECT_FALSE(source.sender().counters().transport_why.empty());
    ASSERT_TRUE(source.claim("checkpoint"));
    move_file(source, "file", 5);
    EXPECT_EQ(rig_->verbs().counts().bytes_copied > 0, choice.expected == wire::Transport::kVerbs);
  }
}

TEST_F(Verbs, WithoutAConnectionBytesComeOverTcpAndLaterOverVerbs) {
  rig({}, kShort).verbs().set_link(false);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  EXPECT_EQ(source.sender().counters().transport, wire::Transport::kTcp);
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "over-tcp", 10);
  EXPECT_EQ(rig_->verbs().counts().bytes_copied, 0u);
  rig_->verbs().set_link(true);
  EXPECT_TRUE(eventually([&] { return transport_of_session() == wire::Transport::kVerbs; }));
  move_file(source, "over-verbs", 10);
  EXPECT_GT(rig_->verbs().counts().bytes_copied, 0u);
}

TEST_F(Verbs, WithoutAConnectionAVerbsOnlySessionIsRefusedWithTheReason) {
  RigVerbs verbs;
  verbs.source = TransportMode::kVerbs;
  rig(verbs, kShort).verbs().set_link(false);
  TestSource source(*rig_, {});
  ASSERT_FALSE(source.opened());
  EXPECT_NE(source.opened().error().message.find("no answer"), std::string::npos)
      << source.opened().error().message;
}

TEST_F(Verbs, MemoryThatCannotBeRegisteredMeansTcp) {
  RigVerbs verbs;
  verbs.fabric.registered_max_bytes = 0;
  rig(verbs);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  EXPECT_EQ(source.sender().counters().transport, wire::Transport::kTcp);
  EXPECT_NE(source.sender().counters().transport_why.find("memlock"), std::string::npos);
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "file", 10);
}

// ---- Faults of the fabric ----------------------------------------------------------------------

class VerbsFault : public Verbs, public testing::WithParamInterface<ReadFault> {};

TEST_P(VerbsFault, NothingIsLostAndNothingComesTwice) {
  rig({}, kShort);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "before", 5);
  rig_->verbs().plan({GetParam(), ReadFault::kNone, ReadFault::kNone, GetParam()});
  move_file(source, "file", 40);
  ASSERT_TRUE(source.seal());
  EXPECT_EQ(rig_->verbs().counts().faults, 2u);
  EXPECT_EQ(transport_of_session(), wire::Transport::kVerbs);  // had again
}

INSTANTIATE_TEST_SUITE_P(Of, VerbsFault,
                         testing::Values(ReadFault::kError, ReadFault::kSilence,
                                         ReadFault::kDuplicate, ReadFault::kStranger,
                                         ReadFault::kLate, ReadFault::kCorrupt,
                                         ReadFault::kDisconnect));

class VerbsSeed : public Verbs, public testing::WithParamInterface<uint64_t> {};

TEST_P(VerbsSeed, AllFaultsTogetherAreSurvived) {
  RigVerbs verbs;
  verbs.fabric.seed = GetParam();
  verbs.fabric.fault_rate = 0.05;
  verbs.fabric.faults_max = 25;
  verbs.fabric.rails = 1 + GetParam() % 2;
  verbs.fabric.limits.pieces_max = GetParam() % 3 == 0 ? 1 : 16;
  rig(verbs, kShort);
  random_.seed(GetParam());
  TestSource source(*rig_, {.pool_slots = 16, .stream_count = 3});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  for (int i = 0; i < 4; ++i) move_file(source, "file-" + std::to_string(i), 60);
  const Status sealed = source.seal();
  ASSERT_TRUE(sealed) << sealed.error().message;
  EXPECT_GT(rig_->verbs().counts().faults, 0u);
  EXPECT_EQ(source.pool().counters().free, source.pool().counters().slots);
}

INSTANTIATE_TEST_SUITE_P(By, VerbsSeed, testing::Range<uint64_t>(1, 9));

TEST_F(Verbs, StrangeCompletionsAreCountedAndIgnored) {
  rig();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "first", 3);
  ASSERT_TRUE(eventually([&] { return rig_->verbs().counts().live_queues == 2; }));
  const uint64_t connections = rig_->verbs().counts().connections;
  rig_->verbs().plan({ReadFault::kDuplicate, ReadFault::kStranger, ReadFault::kDuplicate});
  move_file(source, "second", 10);
  EXPECT_EQ(rig_->verbs_target().traffic().strange_completions, 3u);
  EXPECT_EQ(rig_->verbs().counts().connections, connections);
}

TEST_F(Verbs, ALinkThatIsCutForLessThanTheTimeoutCostsNothing) {
  rig({}, kShort);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  std::thread cutter([&] {
    for (int i = 0; i < 5; ++i) {
      std::this_thread::sleep_for(milliseconds(20));
      rig_->verbs().set_link(false);
      rig_->network().set_link(false);
      std::this_thread::sleep_for(milliseconds(100));
      rig_->verbs().set_link(true);
      rig_->network().set_link(true);
    }
  });
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(source.write(file, static_cast<uint64_t>(i) * 10 * kChunk, 10 * kChunk, random_));
    std::this_thread::sleep_for(milliseconds(10));
  }
  cutter.join();
  ASSERT_TRUE(source.seal());
  EXPECT_EQ(rig_->sink().content(file.node), file.model);
}

TEST_F(Verbs, ALinkThatStaysCutFailsBothSidesAndGivesAllBack) {
  rig({}, kShort);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  ASSERT_TRUE(source.write(file, 0, 4 * kChunk, random_));
  rig_->verbs().set_link(false);
  rig_->network().set_link(false);
  const auto start = Clock::now();
  EXPECT_FALSE(source.write(file, 4 * kChunk, 100 * kChunk, random_));
  EXPECT_LT(Clock::now() - start, 5 * kShort);
  EXPECT_TRUE(eventually([&] { return rig_->receiver().sessions().empty(); }));
  EXPECT_TRUE(
      eventually([&] { return source.pool().counters().free == source.pool().counters().slots; }));
  EXPECT_EQ(rig_->verbs().counts().live_queues, 0u);
  EXPECT_EQ(rig_->verbs_source()->counters().registered_regions, 0u);
}

// ---- Devices that go away ----------------------------------------------------------------------

TEST_F(Verbs, AnAutoSessionGoesOnOverTcpWhenTheTargetsDeviceIsRemoved) {
  rig({}, kShort);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "before", 10);
  rig_->verbs().remove_target_rail(0);
  move_file(source, "after", 10);
  EXPECT_EQ(transport_of_session(), wire::Transport::kTcp);
  EXPECT_TRUE(
      eventually([&] { return source.sender().counters().transport == wire::Transport::kTcp; }));
  // Nothing of the device is held any more.
  EXPECT_TRUE(eventually([&] { return rig_->verbs().counts().live_domains == 1; }));
}

TEST_F(Verbs, AnAutoSessionGoesOnOverTcpWhenTheSourcesDeviceIsRemoved) {
  rig({}, kShort);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "before", 10);
  rig_->verbs().remove_source_rail(0);
  EXPECT_EQ(rig_->verbs_source()->counters().registered_regions, 0u);
  move_file(source, "after", 10);
  EXPECT_EQ(transport_of_session(), wire::Transport::kTcp);
}

TEST_F(Verbs, OneRailOfSeveralMayGo) {
  RigVerbs verbs;
  verbs.fabric.rails = 2;
  verbs.source = TransportMode::kVerbs;  // so that nothing else can carry the bytes
  rig(verbs, kShort);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "before", 20);
  rig_->verbs().remove_source_rail(1);
  move_file(source, "after", 20);
  EXPECT_EQ(transport_of_session(), wire::Transport::kVerbs);
}

TEST_F(Verbs, AVerbsOnlySessionEndsWithTheReasonWhenItsDeviceIsRemoved) {
  RigVerbs verbs;
  verbs.target = TransportMode::kVerbs;
  rig(verbs, kShort);
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened()) << source.opened().error().message;
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "before", 10);
  rig_->verbs().remove_target_rail(0);
  TestFile& file = **source.make_file("after");
  EXPECT_FALSE(source.write(file, 0, 50 * kChunk, random_));
  EXPECT_FALSE(source.drain(file));
  EXPECT_TRUE(eventually([&] { return !source.sender().status(); }));
  EXPECT_NE(source.sender().status().error().message.find("RDMA"), std::string::npos)
      << source.sender().status().error().message;
  EXPECT_EQ(source.pool().counters().free, source.pool().counters().slots);
}

// ---- Peers that lie ----------------------------------------------------------------------------

TEST_F(Verbs, AWrongKeyMeansTcpAfterAFewAttempts) {
  rig({}, kShort).verbs().forget_source_keys();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened());
  ASSERT_TRUE(source.claim("checkpoint"));
  move_file(source, "file", 10);
  EXPECT_EQ(rig_->verbs().counts().bytes_copied, 0u);
  // So what no announcement held came over TCP, though by now the next attempt may have begun.
  const OutletCounters sent = source.sender().counters();
  EXPECT_GE(sent.verified_bytes, 10 * kChunk);
  EXPECT_LT(sent.inline_chunks * wire::kInlineMaxBytes, sent.verified_bytes);
}

TEST_F(Verbs, AWrongKeyEndsAVerbsOnlySession) {
  RigVerbs verbs;
  verbs.source = TransportMode::kVerbs;
  rig(verbs, kShort).verbs().forget_source_keys();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened());
  ASSERT_TRUE(source.claim("checkpoint"));
  TestFile& file = **source.make_file("file");
  (void)source.write(file, 0, 10 * kChunk, random_);
  EXPECT_FALSE(source.drain(file));
}

TEST_F(Verbs, WhoeverDoesNotKnowTheSecretMayNotConnect) {
  rig();
  TestSource source(*rig_, {});
  ASSERT_TRUE(source.opened());
  const auto knock = [&](const wire::RdmaHello& hello) {
    std::array<std::byte, wire::kRdmaHelloBytes> bytes;
    wire::Writer(std::span<std::byte>(bytes))(hello);
    return rig_->verbs().knock(bytes).message;
  };
  wire::RdmaHello hello;
  EXPECT_EQ(knock(hello), "no session has this secret");
  hello.secret = random_token();
  EXPECT_EQ(knock(hello), "no session has this secret");
  hello.version = wire::kVersion + 1;
  EXPECT_EQ(knock(hello), "another version of the protocol");
  hello.magic = {'G', 'E', 'T', ' '};
  EXPECT_EQ(knock(hello), "not a ppmr target");
  EXPECT_EQ(rig_->verbs().knock({}).message, "not a ppmr target");
  EXPECT_EQ(rig_->verbs_source()->counters().refused, 5u);
}

TEST(VerbsOffer, NumbersThatCannotBeTrueAreRefused) {
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

// ---- Again and again ---------------------------------------------------------------------------

TEST_F(Verbs, TwoHundredSessionsLeaveNothingBehind) {
  rig();
  const size_t threads = threads_of_this_process();
  for (int i = 0; i < 200; ++i) {
    TestSource source(*rig_, {.pool_slots = 2, .stream_count = 1});
    ASSERT_TRUE(source.opened()) << source.opened().error().message;
    ASSERT_TRUE(source.opened()) << source.opened().error().message;
    ASSERT_TRUE(source.claim("checkpoint-" + std::to_string(i)));
    TestFile& file = **source.make_file("file");
    ASSERT_TRUE(source.write(file, 0, 2 * kChunk, random_));
    ASSERT_TRUE(source.seal());
  }
  EXPECT_TRUE(eventually([&] { return rig_->receiver().sessions().empty(); }));
  const auto counts = rig_->verbs().counts();
  EXPECT_EQ(counts.live_queues, 0u);
  EXPECT_EQ(counts.live_regions, 1u);  // the store
  EXPECT_EQ(counts.live_domains, 1u);
  EXPECT_TRUE(eventually([&] { return threads_of_this_process() <= threads; }));
}

}  // namespace
}  // namespace ppmr
