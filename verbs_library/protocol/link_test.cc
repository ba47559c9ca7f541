// Tests the protocol of one connection step by step. link_simulation_test.cc mixes the steps.
#include "verbs_library/protocol/link.h"

#include <gtest/gtest.h>

#include <string>

namespace ppmr::verbs {
namespace {

using Phase = Link::Phase;

EndId end(uint8_t number) {
  EndId id;
  id.gid[15] = number;
  id.qpn = number;
  return id;
}

constexpr Traffic kBusy{.sends_done = false, .sent = 5, .received = 3};
constexpr Traffic kDone{.sends_done = true, .sent = 5, .received = 3};
constexpr Traffic kPeerDone{.sends_done = true, .sent = 3, .received = 5};

class LinkTest : public testing::Test {
 protected:
  // Passes one request of `from` to `to`, and the reply back. Returns the kind of the reply.
  ReplyKind exchange(Link& from, const Traffic& at, Link& to, const Traffic& there) {
    const auto request = from.next_request(at);
    EXPECT_TRUE(request);
    const auto handled = to.handle(*request, there);
    from.answered(*request, handled.reply);
    return handled.reply.kind;
  }

  void release_low() {
    ASSERT_TRUE(low_.leave());
    ASSERT_EQ(exchange(low_, kDone, high_, kPeerDone), ReplyKind::kDrained);
    low_.observe(kDone);
    ASSERT_EQ(low_.phase(), Phase::kReady);
    low_.left();
  }

  Link low_{end(1), end(2)};
  Link high_{end(2), end(1)};
};

TEST_F(LinkTest, MovesAndOpensAgain) {
  release_low();
  EXPECT_TRUE(high_.is_gated());
  low_.returned();
  EXPECT_EQ(exchange(low_, kDone, high_, kPeerDone), ReplyKind::kConnected);
  EXPECT_FALSE(low_.is_gated());
  EXPECT_TRUE(high_.is_gated()) << "the peer must not send before GO";
  EXPECT_EQ(exchange(low_, kDone, high_, kPeerDone), ReplyKind::kOk);
  EXPECT_FALSE(high_.is_gated());
  EXPECT_EQ(low_.phase(), Phase::kOpen);
}

TEST_F(LinkTest, AsksOnlyWhenItsOwnSendsAreDone) {
  ASSERT_TRUE(low_.leave());
  EXPECT_TRUE(low_.is_gated());
  EXPECT_FALSE(low_.next_request(kBusy));
  EXPECT_TRUE(low_.next_request(kDone));
}

TEST_F(LinkTest, IsNotReadyBeforeThePeersMessagesHaveArrived) {
  ASSERT_TRUE(low_.leave());
  Traffic peer = kPeerDone;
  peer.sent = 4;
  EXPECT_EQ(exchange(low_, kDone, high_, peer), ReplyKind::kDrained);
  low_.observe(kDone);
  EXPECT_EQ(low_.phase(), Phase::kLeaving);
  Traffic arrived = kDone;
  arrived.received = 4;
  low_.observe(arrived);
  EXPECT_EQ(low_.phase(), Phase::kReady);
}

TEST_F(LinkTest, PeerIsDrainingUntilItHasReceivedEverything) {
  ASSERT_TRUE(low_.leave());
  Traffic peer = kPeerDone;
  peer.received = 4;
  EXPECT_EQ(exchange(low_, kDone, high_, peer), ReplyKind::kDraining);
  EXPECT_EQ(exchange(low_, kDone, high_, kPeerDone), ReplyKind::kDrained);
}

TEST_F(LinkTest, CancelledReleaseHoldsSendsBackUntilThePeerKnows) {
  ASSERT_TRUE(low_.leave());
  exchange(low_, kDone, high_, kPeerDone);
  low_.stay();
  EXPECT_TRUE(low_.is_gated());
  EXPECT_EQ(exchange(low_, kDone, high_, kPeerDone), ReplyKind::kOk);
  EXPECT_FALSE(low_.is_gated());
  EXPECT_FALSE(high_.is_gated());
}

TEST_F(LinkTest, CancelledReleaseThatHasNotAskedThePeerOpensAtOnce) {
  ASSERT_TRUE(low_.leave());
  low_.stay();
  EXPECT_FALSE(low_.is_gated());
}

TEST_F(LinkTest, LateSuspendOfACancelledReleaseHasNoEffect) {
  ASSERT_TRUE(low_.leave());
  const auto late = low_.next_request(kDone);
  low_.stay();
  exchange(low_, kDone, high_, kPeerDone);
  EXPECT_EQ(high_.handle(*late, kPeerDone).reply.kind, ReplyKind::kStale);
  EXPECT_FALSE(high_.is_gated());
}

TEST_F(LinkTest, PeerThatHasAnsweredDrainedLeavesWithoutAsking) {
  release_low();
  ASSERT_TRUE(high_.leave());
  high_.observe(kPeerDone);
  EXPECT_EQ(high_.phase(), Phase::kReady);
}

TEST_F(LinkTest, IfBothReturnTheRequestOfTheLowerEndCounts) {
  release_low();
  ASSERT_TRUE(high_.leave());
  high_.observe(kPeerDone);
  high_.left();
  low_.returned();
  high_.returned();
  EXPECT_EQ(exchange(high_, kPeerDone, low_, kDone), ReplyKind::kCrossed);
  EXPECT_EQ(exchange(low_, kDone, high_, kPeerDone), ReplyKind::kConnected);
  EXPECT_EQ(high_.phase(), Phase::kOpen);
  EXPECT_TRUE(high_.is_gated());
  exchange(low_, kDone, high_, kPeerDone);
  EXPECT_FALSE(high_.is_gated());
}

TEST_F(LinkTest, RepeatedReconnectGetsTheSameAnswerWithoutANewQueuePair) {
  release_low();
  low_.returned();
  const auto request = low_.next_request(kDone);
  EXPECT_EQ(high_.handle(*request, kPeerDone).action, LinkAction::kReconnect);
  const auto again = high_.handle(*request, kPeerDone);
  EXPECT_EQ(again.action, LinkAction::kNone);
  EXPECT_EQ(again.reply.kind, ReplyKind::kConnected);
}

TEST_F(LinkTest, MoverWhosePeerHasEndedLeavesAndThenFails) {
  ASSERT_TRUE(low_.leave());
  low_.lose_peer();
  low_.observe(kBusy);
  EXPECT_EQ(low_.phase(), Phase::kLeaving) << "the last send has not completed with an error yet";
  low_.observe(kDone);
  ASSERT_EQ(low_.phase(), Phase::kReady);
  low_.left();
  low_.returned();
  EXPECT_EQ(low_.phase(), Phase::kFailed);
  EXPECT_TRUE(low_.is_gated());
}

TEST_F(LinkTest, PeerThatGaveUpRefusesTheMover) {
  release_low();
  high_.fail();
  low_.returned();
  EXPECT_EQ(exchange(low_, kDone, high_, kPeerDone), ReplyKind::kGone);
  EXPECT_EQ(low_.phase(), Phase::kFailed);
}

TEST_F(LinkTest, DoesNotLeaveBeforeAnEarlierMoveOfThePeerIsFinished) {
  release_low();
  low_.returned();
  exchange(low_, kDone, high_, kPeerDone);
  EXPECT_FALSE(high_.leave()) << "GO has not arrived";
  EXPECT_FALSE(low_.leave()) << "GO was not answered";
  exchange(low_, kDone, high_, kPeerDone);
  EXPECT_TRUE(high_.leave());
}

TEST(Link, SaysWhetherSendsOrThePeerDelayARelease) {
  const std::string sends = what_delays({.sends_done = false, .sent = 3, .received = 0});
  const std::string peer = what_delays({.sends_done = true, .sent = 3, .received = 0});
  EXPECT_NE(sends.find("posts no receives"), std::string::npos);
  EXPECT_EQ(peer.find("posts no receives"), std::string::npos);
}

}  // namespace
}  // namespace ppmr::verbs
