#include "jobs/agent/host_state.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace ppmr {
namespace {

using enum HostState;

const std::vector<HostState> kRecorded = {kReady, kSpare, kMoving, kOut, kInactive};
const std::vector<HostEvent> kEvents = {
    HostEvent::kNodeLeaves, HostEvent::kChosen,      HostEvent::kNodeLeft,
    HostEvent::kNodeStayed, HostEvent::kNodeArrived, HostEvent::kNodeStayedOff,
    HostEvent::kFailed,     HostEvent::kTakenOut,    HostEvent::kReturned,
};

HostState after(HostState state, std::initializer_list<HostEvent> events) {
  for (const HostEvent event : events) {
    const auto next = host_step(state, event);
    EXPECT_TRUE(next) << next.error().message;
    if (next) state = *next;
  }
  return state;
}

TEST(HostState, HostThatItsNodeHasLeftIsOutUntilItIsReturned) {
  EXPECT_EQ(after(kReady, {HostEvent::kNodeLeaves, HostEvent::kNodeLeft}), kOut);
  EXPECT_EQ(after(kOut, {HostEvent::kReturned}), kSpare);
}

TEST(HostState, EvacuatedSpareIsOut) {
  EXPECT_EQ(after(kSpare, {HostEvent::kTakenOut}), kOut);
  EXPECT_FALSE(host_step(kOut, HostEvent::kChosen));
}

TEST(HostState, SpareThatTakesANodeIsReady) {
  EXPECT_EQ(after(kSpare, {HostEvent::kChosen, HostEvent::kNodeArrived}), kReady);
}

TEST(HostState, AfterAFailedMoveBothHostsHaveTheirFormerState) {
  EXPECT_EQ(after(kReady, {HostEvent::kNodeLeaves, HostEvent::kNodeStayed}), kReady);
  EXPECT_EQ(after(kSpare, {HostEvent::kChosen, HostEvent::kNodeStayedOff}), kSpare);
}

TEST(HostState, SpareThatFailedIsInactiveUntilItIsReturned) {
  EXPECT_EQ(after(kSpare, {HostEvent::kChosen, HostEvent::kFailed}), kInactive);
  EXPECT_EQ(after(kInactive, {HostEvent::kReturned}), kSpare);
}

TEST(HostState, OnlyASpareIsChosenAndOnlyAHostWithANodeIsLeft) {
  for (const HostState state : kRecorded) {
    EXPECT_EQ(host_step(state, HostEvent::kChosen).has_value(), state == kSpare);
    EXPECT_EQ(host_step(state, HostEvent::kNodeLeaves).has_value(), state == kReady);
  }
}

// The return of a host that has a node, or takes one, does not make the host a spare.
TEST(HostState, HostWithANodeCannotBeReturnedOrTakenOut) {
  for (const HostState state : {kReady, kMoving}) {
    EXPECT_FALSE(host_step(state, HostEvent::kReturned));
    EXPECT_FALSE(host_step(state, HostEvent::kTakenOut));
  }
}

TEST(HostState, NoEventLeadsToAStateThatIsNeverRecorded) {
  for (const HostState state : kRecorded) {
    for (const HostEvent event : kEvents) {
      const auto next = host_step(state, event);
      EXPECT_TRUE(!next || *next != kLost);
    }
  }
}

TEST(HostState, SilentHostIsLostUnlessTheJobDoesNotUseIt) {
  const std::map<HostState, HostState> shown = {
      {kReady, kLost}, {kSpare, kLost}, {kMoving, kLost}, {kOut, kOut}, {kInactive, kInactive}};
  for (const auto& [recorded, state] : shown) {
    EXPECT_EQ(shown_state(recorded, Contact::kSilent), state) << to_string(recorded);
    EXPECT_EQ(shown_state(recorded, Contact::kAnswers), recorded);
  }
}

// If the job agent of a host is away, a node there goes on, but a spare cannot take a node.
TEST(HostState, WithoutItsJobAgentASpareIsInactiveAndAHostWithANodeIsReady) {
  EXPECT_EQ(shown_state(kSpare, Contact::kAway), kInactive);
  EXPECT_EQ(shown_state(kReady, Contact::kAway), kReady);
  EXPECT_EQ(shown_state(kMoving, Contact::kAway), kMoving);
}

// The failure of a name service does not show that a host is dead.
TEST(HostState, SpareThatCannotBeAskedIsInactiveAndAHostWithANodeIsReady) {
  EXPECT_EQ(shown_state(kSpare, Contact::kUnknown), kInactive);
  EXPECT_EQ(shown_state(kReady, Contact::kUnknown), kReady);
  EXPECT_EQ(shown_state(kMoving, Contact::kUnknown), kMoving);
}

TEST(NodeState, NodeIsLostWithItsHostEvenIfItMoves) {
  EXPECT_EQ(node_state(false, kReady), NodeState::kReady);
  EXPECT_EQ(node_state(true, kMoving), NodeState::kMoving);
  EXPECT_EQ(node_state(true, kLost), NodeState::kLost);
  EXPECT_EQ(node_state(false, kLost), NodeState::kLost);
}

TEST(HostState, NameOfEachStateCanBeParsed) {
  for (const HostState state : kRecorded) EXPECT_EQ(parse_host_state(to_string(state)), state);
  EXPECT_FALSE(parse_host_state("drained"));
}

}  // namespace
}  // namespace ppmr
