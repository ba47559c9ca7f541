// Estimates the clock of the other node. A downtime begins at the source and ends at the target, so
// it is the difference of two clocks. An exchange of messages shows how far the clocks differ, with
// an error of up to half of its round trip: the shares of the two directions in the round trip are
// unknown.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "migration/records/ownership_record.h"
#include "migration/relay/agent_client.h"

namespace ppmr {

// All times are CLOCK_REALTIME.
struct ClockExchange {
  int64_t asked_ns = 0;     // on our clock
  int64_t peer_ns = 0;      // on the peer's clock, when it answered
  int64_t answered_ns = 0;  // on our clock
};

struct PeerClock {
  int64_t ahead_ns = 0;        // the peer's clock minus ours
  int64_t uncertainty_ns = 0;  // `ahead_ns` is wrong by at most this
};

// Takes the exchange with the shortest round trip. Ignores exchanges in which our clock went back.
// Returns nullopt if no other exchange is left. Pure.
std::optional<PeerClock> estimate_peer_clock(const std::vector<ClockExchange>& exchanges);

// Asks the agent for its clock a few times. Returns nullopt if the agent is of an older version, or
// does not answer. `patience`: for each answer.
std::optional<PeerClock> ask_peer_clock(AgentClient& agent, std::chrono::milliseconds patience);

// Converts the times of the peer's trees to our clock. Times that are not known stay 0. Pure.
void use_own_clock(OwnershipRecord& of_peer, const PeerClock& clock);

}  // namespace ppmr
