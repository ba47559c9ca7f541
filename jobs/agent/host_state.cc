#include "jobs/agent/host_state.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace ppmr {
namespace {

using enum HostState;

constexpr std::array<std::pair<HostState, const char*>, 6> kNames = {{
    {kReady, "ready"},
    {kSpare, "spare"},
    {kMoving, "moving"},
    {kOut, "out"},
    {kInactive, "inactive"},
    {kLost, "lost"},
}};

struct Step {
  HostState from;
  HostEvent event;
  HostState to;
};

// What each HostEvent says of a host, for errors.
constexpr std::array kPhrases = {
    "begin to lose its node to a move",
    "be chosen for a node that moves",
    "have lost its node to a move",
    "have kept its node after a move",
    "have taken the node of a move",
    "have missed the node of a move",
    "have failed to prepare for a node",
    "be taken out of the pool",
    "have died",
    "take the node of a dead host",
    "be returned to the pool",
};
static_assert(kPhrases.size() == static_cast<size_t>(HostEvent::kReturned) + 1);

constexpr Step kSteps[] = {
    {kReady, HostEvent::kNodeLeaves, kMoving},   {kMoving, HostEvent::kNodeLeft, kOut},
    {kMoving, HostEvent::kNodeStayed, kReady},   {kSpare, HostEvent::kChosen, kMoving},
    {kMoving, HostEvent::kNodeArrived, kReady},  {kMoving, HostEvent::kNodeStayedOff, kSpare},
    {kMoving, HostEvent::kFailed, kInactive},    {kSpare, HostEvent::kTakenOut, kOut},
    {kInactive, HostEvent::kTakenOut, kOut},     {kOut, HostEvent::kReturned, kSpare},
    {kInactive, HostEvent::kReturned, kSpare},   {kReady, HostEvent::kDied, kInactive},
    {kSpare, HostEvent::kDied, kInactive},       {kMoving, HostEvent::kDied, kInactive},
    {kSpare, HostEvent::kTakesLostNode, kReady},
};

}  // namespace

const char* to_string(HostState state) {
  for (const auto& [known, name] : kNames) {
    if (known == state) return name;
  }
  return "";
}

const char* to_string(NodeState state) {
  switch (state) {
    case NodeState::kMoving:
      return "moving";
    case NodeState::kLost:
      return "lost";
    case NodeState::kReady:
      break;
  }
  return "ready";
}

std::optional<HostState> parse_host_state(const std::string& name) {
  for (const auto& [state, known] : kNames) {
    if (name == known) return state;
  }
  return std::nullopt;
}

Result<HostState> host_step(HostState recorded, HostEvent event) {
  for (const Step& step : kSteps) {
    if (step.from == recorded && step.event == event) return step.to;
  }
  return failure(EPERM, fmt::format("a host that is {} cannot {}", to_string(recorded),
                                    kPhrases.at(static_cast<size_t>(event))));
}

HostState shown_state(HostState recorded, Contact contact) {
  const bool in_use = recorded == kReady || recorded == kSpare || recorded == kMoving;
  if (contact == Contact::kSilent && in_use) return kLost;
  const bool takes_no_node = contact == Contact::kAway || contact == Contact::kUnknown;
  if (takes_no_node && recorded == kSpare) return kInactive;
  return recorded;
}

NodeState node_state(bool moves, HostState shown) {
  if (shown == kLost) return NodeState::kLost;
  return moves ? NodeState::kMoving : NodeState::kReady;
}

}  // namespace ppmr
