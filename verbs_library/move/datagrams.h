// What a UD queue pair needs for moves: the ends to which it sends, and those that send to it.
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
  Secret secret = {};  // by which a later process with the same name is told apart
  Gid gid = {};        // the real ones, once the end is known
  uint32_t qpn = 0;
  Call call;
  uint64_t asked_round = 0;
  Time ask_again = {};
};

// A queue pair that sends to this one.
struct WatcherKey {
  EndId sender;
  EndId known_as;  // the name by which the sender knows this end

  auto operator<=>(const WatcherKey&) const = default;
};
struct Watcher {
  bool holds = false;  // it holds back, or does not send any more
  Call call;
  Time ask_again = {};
  int refusals = 0;  // in a row
};

// Guarded by World::control.
struct Datagrams {
  std::map<EndId, Target> targets;
  std::map<WatcherKey, Watcher> watchers;
  bool leaves = false;              // this process will move
  Time drained_until = {};          // an end that moves waits until this end's sends are done
  std::optional<Time> waits_since;  // sends are held back
};

// One look at a UD queue pair: finds out where held sends go, asks the senders to hold back.
// Returns when it has to be looked at again. Both: the caller holds World::control.
Time tend_datagrams(Qp& qp, Time now);

// Why a release would fail because of this queue pair; empty: nothing is known. Changes nothing.
std::string why_datagrams_stay(const Qp& qp);

// The process will move: holds back and drains. Sets `is_ready` to false while that is not
// finished, and returns why it is not possible at all, or an empty text. `slow` names what is
// waited for.
std::string leave_datagrams(Qp& qp, bool& is_ready, std::string& slow);
void stay_datagrams(Qp& qp);    // the release is cancelled
void left_datagrams(Qp& qp);    // the queue pair is destroyed
void return_datagrams(Qp& qp);  // it was made again

// Replies to WATCH and HOLD.
ReplyKind answer_watch(Qp& qp, const EndId& sender, const EndId& known_as);
ReplyKind answer_hold(Qp& qp, const EndId& end);

// Programs that make a path may do so because there is another process at its end.
void doubt_targets(const Context& context, const Gid& gid);

}  // namespace ppmr::verbs
