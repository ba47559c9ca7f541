// A datagram needs a route: the real address handle and the real queue pair number of its
// destination. The data path sends datagrams that have a route. It holds back a datagram without a
// route, and wakes the helper thread. The helper thread asks the destination for its address
// (protocol/destination.h), and adds the route. This costs one round trip for each destination.
//
// Rejected: to find the routes when the program makes an address handle. The handle does not say to
// which queue pairs the program will send.
#include "verbs_library/move/datagrams.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_library/move/directory.h"
#include "verbs_library/move/settings.h"
#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/log.h"
#include "verbs_library/shadow/paths.h"
#include "verbs_library/shadow/send.h"

namespace ppmr::verbs {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kStep{1};        // the time between two looks at what is under way
constexpr milliseconds kAskAgain{20};   // the pause after an answer that was not final
constexpr milliseconds kAskDrained{1};  // the pause after DRAINING
constexpr int kRefusalsMax = 50;        // after so many, the sender's process counts as ended
// How long sends stay held back for an end that has stopped asking whether they are done.
constexpr milliseconds kDrainedPatience{1000};

Message make_request(const Qp& qp, RequestKind kind, const EndId& to, const Secret& secret) {
  Message request;
  request.kind = static_cast<uint8_t>(kind);
  if (!qp.names.empty()) request.from = qp.names.front().end;
  request.to = to;
  request.secret = secret;
  return request;
}

void take_answer(Target& target, Time now) {
  const Message answer = target.call.take_answer();
  target.call.end();  // leaves no connection open, because CRIU would have to move it
  target.ask_again = now + kAskAgain;
  if (!answer.is_reply) return;
  target.gid = answer.address.gid;
  target.qpn = answer.address.qpn;
  target.state.answered(target.asked_round, static_cast<ReplyKind>(answer.kind));
}

// Asks the end for its address, or goes on asking.
void ask(const Qp& qp, const EndId& end, Target& target, Time now) {
  Call& call = target.call;
  if (call.state() == Call::State::kRuns && target.asked_round != target.state.round()) call.end();
  if (call.state() == Call::State::kRuns) call.advance();
  if (call.state() == Call::State::kAnswered) return take_answer(target, now);
  if (call.state() == Call::State::kFailed) {
    const int error = call.error();
    call.end();
    target.ask_again = now + kAskAgain;
    if (error == ECONNREFUSED || error == ECONNRESET) target.state.refused();
    return;
  }
  if (call.state() != Call::State::kIdle || now < target.ask_again) return;
  const auto file = read_end_file(end);
  const Listing listing = !file ? Listing::kNone : file->moves ? Listing::kMoves : Listing::kHere;
  target.ask_again = now + kAskAgain;
  if (file) target.secret = file->secret;
  if (!target.state.look(listing)) return;
  target.asked_round = target.state.round();
  call.start(file->control, make_request(qp, RequestKind::kWatch, end, file->secret));
}

Gid gid_behind(const Ah& path) {
  Gid gid = {};
  if (path.attributes.is_global) std::copy_n(path.attributes.grh.dgid.raw, gid.size(), gid.begin());
  return gid;
}

// Returns the route to an end that is not kAsking. Returns nullopt if its address handle cannot be
// made.
std::optional<Route> make_route(Ah& path, const EndId& end, const Target& target) {
  using Phase = Destination::Phase;
  if (target.state.phase() == Phase::kKnown) {
    ibv_ah* real_path = path_to(path, target.gid);
    return real_path ? std::optional(Route{real_path, target.qpn}) : std::nullopt;
  }
  ibv_ah* real_path = path_to(path, end.gid);
  if (target.state.phase() == Phase::kForeign)
    return real_path ? std::optional(Route{real_path, end.qpn}) : std::nullopt;
  // The end is lost. A datagram on this route completes, and no queue pair receives it.
  if (!real_path && path.shown_gid) real_path = path_to(path, path.shown_gid->gid);
  return real_path ? std::optional(Route{real_path, kNoQueuePair}) : std::nullopt;
}

void find_routes(Qp& qp, Time now) {
  Datagrams& datagrams = *qp.datagrams;
  const bool is_too_late =
      datagrams.waits_since && now - *datagrams.waits_since > settings().hold_limit;
  for (const RouteKey& key : missing_routes(qp)) {
    const auto& paths = qp.owner->paths;
    const auto path = std::find(paths.begin(), paths.end(), key.path);
    if (path == paths.end()) continue;  // the program has destroyed the path, against the rules
    const EndId end{gid_behind(**path), key.qpn};
    Target& target = datagrams.targets[end];
    if (target.state.phase() == Destination::Phase::kAsking) ask(qp, end, target, now);
    if (is_too_late && target.state.phase() == Destination::Phase::kAsking) {
      log("queue pair %x gives an end up", qp.qp_base.qp_num);
      target.state.lose();
    }
    if (target.state.phase() == Destination::Phase::kAsking) continue;
    if (const auto route = make_route(**path, end, target)) add_route(qp, key, *route);
  }
}

void ask_to_hold(const Qp& qp, const WatcherKey& key, Watcher& watcher, Time now) {
  Call& call = watcher.call;
  if (call.state() == Call::State::kRuns) call.advance();
  if (call.state() == Call::State::kAnswered) {
    const Message answer = call.take_answer();
    const auto kind = static_cast<ReplyKind>(answer.kind);
    watcher.holds = kind != ReplyKind::kDraining;
    watcher.ask_again = now + kAskDrained;
    watcher.refusals = 0;
    if (watcher.holds) call.end();
  } else if (call.state() == Call::State::kFailed) {
    const int error = call.error();
    call.end();
    watcher.ask_again = now + kAskAgain;
    if (error == ECONNREFUSED || error == ECONNRESET)
      watcher.holds = ++watcher.refusals >= kRefusalsMax;
  }
  if (call.state() != Call::State::kIdle || watcher.holds || now < watcher.ask_again) return;
  const auto file = read_end_file(key.sender);
  // A sender that is away does not send now. It asks for the address when it is back.
  watcher.holds = !file || file->moves;
  if (watcher.holds) return;
  Message request = make_request(qp, RequestKind::kHold, key.sender, file->secret);
  request.from = key.known_as;
  call.start(file->control, request);
}

}  // namespace

Time tend_datagrams(Qp& qp, Time now) {
  Datagrams& datagrams = *qp.datagrams;
  if (datagrams.leaves) return now + kStep;
  if (now < datagrams.drained_until) return datagrams.drained_until;
  if (!are_sends_gated(qp)) {
    datagrams.waits_since.reset();
    return Time::max();
  }
  if (!datagrams.waits_since) datagrams.waits_since = now;
  find_routes(qp, now);
  if (!open_sends(qp)) return now + kStep;
  datagrams.waits_since.reset();
  return Time::max();
}

std::string why_datagrams_stay(const Qp& qp) {
  for (const auto& [end, target] : qp.datagrams->targets) {
    if (target.state.phase() == Destination::Phase::kForeign)
      return "a peer has no movable verbs, or another directory (" + address_of(end.gid) +
             ", UD queue pair " + std::to_string(end.qpn) + ")";
  }
  return "";
}

std::string leave_datagrams(Qp& qp, bool& is_ready, std::string& slow) {
  Datagrams& datagrams = *qp.datagrams;
  datagrams.leaves = true;
  gate_sends(qp);
  absorb_completions(*qp.send_cq);
  mark_end_of_sends(qp);
  is_ready &= traffic_of(qp).sends_done;
  if (std::string why = why_datagrams_stay(qp); !why.empty()) return why;
  for (auto& [key, watcher] : datagrams.watchers) {
    if (!watcher.holds) ask_to_hold(qp, key, watcher, Clock::now());
    if (watcher.holds) continue;
    is_ready = false;
    slow = "a sender of datagrams does not answer (" + address_of(key.sender.gid) +
           ", UD queue pair " + std::to_string(key.sender.qpn) + ")";
  }
  return "";
}

void stay_datagrams(Qp& qp) {
  qp.datagrams->leaves = false;
  for (auto& [key, watcher] : qp.datagrams->watchers) {
    watcher.call.end();
    // Counts as sending: a sender that holds back will ask again, and others may never have got
    // HOLD.
    watcher.holds = false;
  }
}

void left_datagrams(Qp& qp) {
  Datagrams& datagrams = *qp.datagrams;
  datagrams.watchers.clear();
  for (auto& [end, target] : datagrams.targets) target.call.end();
  datagrams.waits_since.reset();
}

void return_datagrams(Qp& qp) {
  Datagrams& datagrams = *qp.datagrams;
  datagrams.leaves = false;
  datagrams.drained_until = {};
  for (auto& [end, target] : datagrams.targets) {
    target.state.ask_again();
    target.ask_again = {};
  }
}

ReplyKind answer_watch(Qp& qp, const EndId& sender, const EndId& known_as) {
  if (!qp.datagrams) return ReplyKind::kGone;
  if (qp.datagrams->leaves) return ReplyKind::kNotYet;
  Watcher& watcher = qp.datagrams->watchers[{sender, known_as}];
  watcher.holds = false;
  return ReplyKind::kKeys;
}

ReplyKind answer_hold(Qp& qp, const EndId& end) {
  if (!qp.datagrams) return ReplyKind::kGone;
  Datagrams& datagrams = *qp.datagrams;
  const auto target = datagrams.targets.find(end);
  if (target == datagrams.targets.end()) return ReplyKind::kOk;  // this queue pair sends none there
  gate_sends(qp);
  remove_routes(qp, [&](const RouteKey& key) {
    return key.qpn == end.qpn && gid_behind(*key.path) == end.gid;
  });
  absorb_completions(*qp.send_cq);
  mark_end_of_sends(qp);
  const bool is_drained = traffic_of(qp).sends_done;
  datagrams.drained_until = is_drained ? Time{} : Clock::now() + kDrainedPatience;
  return target->second.state.hold(is_drained);
}

void doubt_targets(const Context& context, const Gid& gid) {
  for (Qp* qp : context.queue_pairs) {
    if (!qp->datagrams) continue;
    for (auto& [end, target] : qp->datagrams->targets) {
      if (end.gid != gid || target.state.phase() == Destination::Phase::kAsking) continue;
      const auto file = read_end_file(end);
      const bool is_same = target.state.phase() == Destination::Phase::kKnown && file &&
                           file->secret == target.secret;
      if (is_same) continue;
      target.state.ask_again();
      target.ask_again = {};
      const EndId& gone = end;
      remove_routes(*qp, [&](const RouteKey& key) {
        return key.qpn == gone.qpn && gid_behind(*key.path) == gone.gid;
      });
    }
  }
}

}  // namespace ppmr::verbs
