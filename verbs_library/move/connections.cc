#include "verbs_library/move/connections.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_library/move/datagrams.h"
#include "verbs_library/move/directory.h"
#include "verbs_library/move/replace.h"
#include "verbs_library/move/settings.h"
#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/log.h"
#include "verbs_library/shadow/send.h"

namespace ppmr::verbs {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDrainStep{1};   // the time between two looks at a queue that drains
constexpr milliseconds kAskAgain{5};    // the pause after an answer that was not final
constexpr milliseconds kDialAgain{20};  // the pause after a connection that failed
constexpr int kRefusalsMax = 50;        // after so many (1 s), the peer counts as ended

void hold_back(Qp& qp) {
  gate_sends(qp);
  if (!qp.connection->is_gated) log("queue pair %x holds back", qp.qp_base.qp_num);
  qp.connection->is_gated = true;
}

// Holds the sends back, or lets them pass again, as the link requires.
void follow_gate(Qp& qp, Time now) {
  Connection& connection = *qp.connection;
  if (connection.link.is_gated()) {
    if (!connection.is_gated) hold_back(qp);
    if (!connection.waits_since) connection.waits_since = now;
  } else if (connection.is_gated && open_sends(qp)) {
    connection.is_gated = false;
    connection.waits_since.reset();
    log("queue pair %x goes on", qp.qp_base.qp_num);
  }
}

Traffic drain(Qp& qp) {
  absorb_completions(*qp.send_cq);
  if (qp.receive_cq != qp.send_cq) absorb_completions(*qp.receive_cq);
  mark_end_of_sends(qp);
  return traffic_of(qp);
}

Message make_request(const Qp& qp, const LinkRequest& request, const ControlAddress& control) {
  const Connection& connection = *qp.connection;
  Message message;
  message.kind = static_cast<uint8_t>(request.kind);
  message.from = connection.link.mine();
  message.to = connection.link.peer();
  message.secret = connection.peer_file->secret;
  message.serial = request.serial;
  message.sent = request.sent;
  if (request.kind == RequestKind::kReconnect) message.address = address_of(qp, control);
  return message;
}

void take_answer(Qp& qp, Time now) {
  Connection& connection = *qp.connection;
  const Message answer = connection.call.take_answer();
  connection.refused_in_a_row = 0;
  if (!answer.is_reply || answer.from != connection.link.peer() ||
      answer.to != connection.link.mine()) {
    connection.call.end();
    connection.ask_again = now + kDialAgain;
    return;
  }
  const LinkReply reply{static_cast<ReplyKind>(answer.kind), answer.serial, answer.sent};
  connection.ask_again = now + (reply.kind == ReplyKind::kDraining ? kDrainStep : kAskAgain);
  if (!connection.link.answered(connection.asked, reply)) return;
  if (const int error = connect_again(qp, answer.address); error != 0) {
    log("connect queue pair %x: %s", qp.qp_base.qp_num, std::strerror(error));
    connection.link.fail();
    return;
  }
  connection.peer_file->control = answer.address.control;
  connection.ask_again = now;
}

// Looks for the peer in the directory, because it was not reached at its last address. Gives the
// peer up after kRefusalsMax refusals.
void look_for_peer(Qp& qp, int error, Time now) {
  Connection& connection = *qp.connection;
  connection.ask_again = now + kDialAgain;
  const bool had_file = connection.peer_file.has_value();
  if (auto file = read_end_file(connection.link.peer())) {
    connection.peer_file = std::move(file);
    if (connection.peer_file->moves) {
      connection.refused_in_a_row = 0;  // the peer moves, and will be back
      return;
    }
  } else if (!had_file || settings().directory.empty()) {
    return;
  }
  if (error != ECONNREFUSED && error != ECONNRESET) return;
  if (++connection.refused_in_a_row < kRefusalsMax) return;
  log("the peer of queue pair %x has ended", qp.qp_base.qp_num);
  connection.link.lose_peer();
}

void converse(Qp& qp, const Traffic& traffic, Time now, const ControlAddress& control) {
  Connection& connection = *qp.connection;
  const auto request = connection.link.next_request(traffic);
  Call& call = connection.call;
  if (!request) return call.end();
  if (call.state() == Call::State::kRuns &&
      (connection.asked.kind != request->kind || connection.asked.serial != request->serial))
    call.end();
  if (call.state() == Call::State::kRuns) call.advance();
  if (call.state() == Call::State::kIdle && now >= connection.ask_again) {
    if (!connection.peer_file) look_for_peer(qp, 0, now);
    if (!connection.peer_file || connection.peer_file->moves) {
      look_for_peer(qp, 0, now);
      if (!connection.peer_file || connection.peer_file->moves) return;
    }
    connection.asked = *request;
    call.start(connection.peer_file->control, make_request(qp, *request, control));
  }
  if (call.state() == Call::State::kAnswered) take_answer(qp, now);
  // Leaves no control connection open, because CRIU would have to move it.
  if (call.state() == Call::State::kIdle && !connection.link.next_request(traffic)) call.end();
  if (call.state() == Call::State::kFailed) {
    const int error = call.error();
    call.end();
    look_for_peer(qp, error, now);
  }
}

bool is_same_secret(const Secret& one, const Secret& other) {
  uint8_t difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= one[i] ^ other[i];
  return difference == 0;
}

struct Addressed {
  Qp* qp = nullptr;
  const EndName* name = nullptr;
};

Addressed find_addressed(const EndId& end) {
  for (Context* context : world().contexts) {
    for (Qp* qp : context->queue_pairs) {
      for (const EndName& name : qp->names) {
        if (name.end == end) return {qp, &name};
      }
    }
  }
  return {};
}

}  // namespace

bool is_broken(const Qp& qp) {
  return qp.qp_base.state == IBV_QPS_ERR || qp.sends->has_failed || qp.receives->has_failed;
}

Time tend(Qp& qp, Time now, const ControlAddress& control) {
  if (qp.datagrams) return tend_datagrams(qp, now);
  if (!qp.connection) return Time::max();
  Connection& connection = *qp.connection;
  Link& link = connection.link;
  if (link.phase() == Link::Phase::kFailed) {
    // The program gets the error with its next send, as with a peer that has died.
    follow_gate(qp, now);
    if (await_held_send(qp)) end_queue_pair(qp);
    return Time::max();
  }
  if (!connection.is_gated && !link.is_gated() && link.phase() == Link::Phase::kOpen)
    return Time::max();
  follow_gate(qp, now);
  const Traffic traffic = drain(qp);
  link.observe(traffic);
  converse(qp, traffic, now, control);
  follow_gate(qp, now);
  if (connection.waits_since && link.phase() != Link::Phase::kLeaving &&
      link.phase() != Link::Phase::kReady &&
      now - *connection.waits_since > settings().hold_limit) {
    log("queue pair %x gives its peer up", qp.qp_base.qp_num);
    link.fail();
    return now;
  }
  if (link.phase() == Link::Phase::kFailed) return now;
  return link.phase() == Link::Phase::kOpen && !connection.is_gated ? Time::max()
                                                                    : now + kDrainStep;
}

std::optional<Message> answer(const Message& request, const ControlAddress& control) {
  if (request.is_reply) return std::nullopt;
  Message reply;
  reply.is_reply = true;
  reply.from = request.to;
  reply.to = request.from;
  reply.serial = request.serial;
  reply.kind = static_cast<uint8_t>(ReplyKind::kGone);
  const auto [qp, name] = find_addressed(request.to);
  if (!qp) return reply;
  if (!is_same_secret(request.secret, qp->secret)) return std::nullopt;
  if (is_broken(*qp) || !qp->real) return reply;
  const auto kind = static_cast<RequestKind>(request.kind);
  if (kind == RequestKind::kHold) {
    reply.kind = static_cast<uint8_t>(answer_hold(*qp, request.from));
    return reply;
  }
  if (kind == RequestKind::kWatch) {
    reply.kind = static_cast<uint8_t>(answer_watch(*qp, request.from, request.to));
    reply.address = address_of(*qp, *name, control);
    reply.address.keys.clear();
    return reply;
  }
  if (kind == RequestKind::kKeys) {
    reply.kind = static_cast<uint8_t>(ReplyKind::kKeys);
    reply.address = address_of(*qp, *name, control);
    return reply;
  }
  if (!qp->connection) {
    reply.kind = static_cast<uint8_t>(ReplyKind::kNotYet);
    return reply;
  }
  Connection& connection = *qp->connection;
  if (connection.link.peer() != request.from) return reply;
  const LinkRequest asked{kind, request.serial, request.sent};
  const auto now = std::chrono::steady_clock::now();
  // Stops new sends before it counts the sends that are still in flight.
  if (kind == RequestKind::kSuspend || kind == RequestKind::kReconnect) hold_back(*qp);
  const Traffic traffic = drain(*qp);
  if (kind == RequestKind::kReconnect && !traffic.sends_done) {
    reply.kind = static_cast<uint8_t>(ReplyKind::kNotYet);
    follow_gate(*qp, now);
    return reply;
  }
  const auto handled = connection.link.handle(asked, traffic);
  reply.kind = static_cast<uint8_t>(handled.reply.kind);
  reply.serial = handled.reply.serial;
  reply.sent = handled.reply.sent;
  if (handled.action == LinkAction::kReconnect) {
    if (const int error = connect_again(*qp, request.address); error != 0) {
      log("connect queue pair %x: %s", qp->qp_base.qp_num, std::strerror(error));
      connection.link.fail();
      reply.kind = static_cast<uint8_t>(ReplyKind::kGone);
    } else {
      if (connection.peer_file) {
        connection.peer_file->control = request.address.control;
        connection.peer_file->moves = false;
      }
      publish_names(*qp, control, false);
    }
  }
  if (handled.reply.kind == ReplyKind::kConnected &&
      connection.link.phase() != Link::Phase::kFailed)
    reply.address = address_of(*qp, control);
  follow_gate(*qp, now);
  return reply;
}

}  // namespace ppmr::verbs
