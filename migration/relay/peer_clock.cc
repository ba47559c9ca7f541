#include "migration/relay/peer_clock.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "migration/relay/agent_requests.h"

namespace ppmr {
namespace {

// Several exchanges are needed: the first may wait for the agent to start, others for the
// scheduler.
constexpr int kExchanges = 5;

}  // namespace

std::optional<PeerClock> estimate_peer_clock(const std::vector<ClockExchange>& exchanges) {
  std::optional<PeerClock> best;
  for (const ClockExchange& exchange : exchanges) {
    const int64_t round_trip_ns = exchange.answered_ns - exchange.asked_ns;
    if (round_trip_ns < 0) continue;
    const int64_t uncertainty_ns = round_trip_ns - round_trip_ns / 2;
    if (best && best->uncertainty_ns <= uncertainty_ns) continue;
    best = PeerClock{exchange.peer_ns - (exchange.asked_ns + round_trip_ns / 2), uncertainty_ns};
  }
  return best;
}

std::optional<PeerClock> ask_peer_clock(AgentClient& agent, std::chrono::milliseconds patience) {
  std::vector<ClockExchange> exchanges;
  for (int i = 0; i < kExchanges; ++i) {
    ClockExchange exchange{.asked_ns = realtime_ns()};
    const auto answer = agent.ask(to_request(agent_request::Clock{}), patience);
    exchange.answered_ns = realtime_ns();
    const auto clock = answer ? answer->find("clock_ns") : nlohmann::json::const_iterator();
    if (!answer || clock == answer->end() || !clock->is_number_unsigned()) break;
    // Accepts only half of the range, so that differences do not overflow.
    const auto peer_ns = clock->get<uint64_t>();
    if (peer_ns > INT64_MAX / 2) break;
    exchange.peer_ns = static_cast<int64_t>(peer_ns);
    exchanges.push_back(exchange);
  }
  return estimate_peer_clock(exchanges);
}

void use_own_clock(OwnershipRecord& of_peer, const PeerClock& clock) {
  for (TreeRecord& tree : of_peer.trees) {
    for (int64_t* time_ns :
         {&tree.restore_began_ns, &tree.held_ns, &tree.running_ns, &tree.complete_ns}) {
      if (*time_ns > 0) *time_ns = std::max<int64_t>(*time_ns - clock.ahead_ns, 1);
    }
  }
}

}  // namespace ppmr
