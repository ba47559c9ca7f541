// What a UD queue pair needs for moves: the ends to which it sends, and the ends that send to it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "verbs_library/move/conversation.h"
#include "verbs_library/protocol/destination.h"
#include "verbs_library/protocol/end_file.h"
#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

using Time = std::chrono::steady_clock::time_point;

// An end to which the queue pair sends.
struct Target {
  Destination state;
  Secret secret = {};  // distinguishes the end from a later one with the same name
  Gid gid = {};        // `gid` and `qpn` are the real ones; valid when the end is kKnown
  uint32_t qpn = 0;
  Call call;
  uint64_t asked_round = 0;
  Time ask_again = {};
};

// A queue pair that sends to this queue pair.
struct WatcherKey {
  EndId sender;
  EndId known_as;  // the name by which the sender knows this end

  auto operator<=>(const WatcherKey&) const = default;
};
struct Watcher {
  bool holds = false;  // whether it holds its sends back, or has stopped sending
  Call call;
  Time ask_again = {};
  int refusals = 0;  // number of refused connections in a row
};

// Guarded by World::control.
struct Datagrams {
  std::map<EndId, Target> targets;
  std::map<WatcherKey, Watcher> watchers;
  bool leaves = false;              // this process will move
  Time drained_until = {};          // until then, sends stay held back for an end that moves
  std::optional<Time> waits_since;  // since when sends are held back
};

// The callers of these functions hold World::control.

// Finds the routes of held sends, and then lets the sends pass. Returns the latest time for the
// next call.
Time tend_datagrams(Qp& qp, Time now);

// Returns why a release would fail because of this queue pair; empty: no reason is known. Changes
// nothing.
std::string why_datagrams_stay(const Qp& qp);

// Holds the sends back, waits for them, and asks the senders to hold back, because this process
// will move. Sets `is_ready` to false if that is not finished, and sets `slow` to the sender that
// it waits for. Returns why a move is not possible at all, or an empty text.
std::string leave_datagrams(Qp& qp, bool& is_ready, std::string& slow);
void stay_datagrams(Qp& qp);    // the release is cancelled
void left_datagrams(Qp& qp);    // the queue pair is destroyed
void return_datagrams(Qp& qp);  // the queue pair was made again

// Return the replies to WATCH and HOLD.
ReplyKind answer_watch(Qp& qp, const EndId& sender, const EndId& known_as);
ReplyKind answer_hold(Qp& qp, const EndId& end);

// Asks the ends behind this GID again if they may have changed. Called when the program makes an
// address handle, which may be because a new process has taken the place of an end.
void doubt_targets(const Context& context, const Gid& gid);

}  // namespace ppmr::verbs
