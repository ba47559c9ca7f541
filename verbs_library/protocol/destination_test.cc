#include "verbs_library/protocol/destination.h"

#include <gtest/gtest.h>

namespace ppmr::verbs {
namespace {

using Phase = Destination::Phase;

Destination known() {
  Destination destination;
  EXPECT_TRUE(destination.look(Listing::kHere));
  destination.answered(destination.round(), ReplyKind::kKeys);
  EXPECT_EQ(destination.phase(), Phase::kKnown);
  return destination;
}

TEST(Destination, IsAskedOnlyWhenItsProcessIsThere) {
  Destination destination;
  EXPECT_FALSE(destination.look(Listing::kMoves));
  EXPECT_EQ(destination.phase(), Phase::kAsking);
  EXPECT_TRUE(destination.look(Listing::kHere));
  destination.answered(destination.round(), ReplyKind::kNotYet);
  EXPECT_EQ(destination.phase(), Phase::kAsking);
}

TEST(Destination, EndWithoutEntryCountsAsForeign) {
  Destination destination;
  EXPECT_FALSE(destination.look(Listing::kNone));
  EXPECT_EQ(destination.phase(), Phase::kForeign);
}

TEST(Destination, EndWhoseEntryVanishesIsLost) {
  Destination destination;
  destination.look(Listing::kMoves);
  destination.look(Listing::kNone);
  EXPECT_EQ(destination.phase(), Phase::kLost);
}

TEST(Destination, EndWhoseQueuePairIsGoneIsLost) {
  Destination destination;
  destination.look(Listing::kHere);
  destination.answered(destination.round(), ReplyKind::kGone);
  EXPECT_EQ(destination.phase(), Phase::kLost);
}

TEST(Destination, EndThatRefusesConnectionsIsLostAfterManyRefusals) {
  Destination destination;
  int refusals = 0;
  for (; destination.phase() == Phase::kAsking && refusals < 1000; ++refusals) {
    EXPECT_TRUE(destination.look(Listing::kHere));
    destination.refused();
  }
  EXPECT_EQ(destination.phase(), Phase::kLost);
  EXPECT_GT(refusals, 1) << "a process that begins to move refuses, too";
}

TEST(Destination, HoldIsAnsweredWithOkOnlyWhenSendsAreDone) {
  Destination destination = known();
  EXPECT_EQ(destination.hold(false), ReplyKind::kDraining);
  EXPECT_EQ(destination.phase(), Phase::kAsking);
  EXPECT_EQ(destination.hold(true), ReplyKind::kOk);
  EXPECT_EQ(destination.phase(), Phase::kAsking);
}

TEST(Destination, AnswerToAQuestionBeforeAHoldDoesNotCount) {
  Destination destination;
  destination.look(Listing::kHere);
  const uint64_t asked = destination.round();
  destination.hold(true);
  destination.answered(asked, ReplyKind::kKeys);
  EXPECT_EQ(destination.phase(), Phase::kAsking);
}

TEST(Destination, IsAskedAgainAfterAMoveOfTheSender) {
  Destination destination = known();
  const uint64_t before = destination.round();
  destination.ask_again();
  EXPECT_EQ(destination.phase(), Phase::kAsking);
  EXPECT_NE(destination.round(), before);
}

}  // namespace
}  // namespace ppmr::verbs
