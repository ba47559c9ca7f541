// Sends, receives and acknowledges messages on the connections that connections.cc makes.
#include "tests/verbs_messages/messenger.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

namespace verbs_messages {
namespace {

using std::chrono::milliseconds;

// The limit for sent and unsent messages together, which bounds the memory for a partner that does
// not answer.
constexpr size_t kQueueMax = 64;
// The interval at which an end that needs a connection tries to find its partner.
constexpr milliseconds kLookAgain{50};

std::span<const std::byte> bytes_of(const auto& object) {
  return std::as_bytes(std::span(&object, 1));
}

}  // namespace

bool Messenger::send(const std::string& to, std::span<const std::byte> message) {
  if (message.size() > kMessageBytesMax) throw Failure("a message is too long");
  Peer& partner = peer(to);
  if (partner.queue.size() >= kQueueMax) return false;
  partner.queue.emplace_back(message.begin(), message.end());
  return true;
}

uint64_t Messenger::acknowledged(const std::string& by) { return peer(by).first - 1; }

void Messenger::progress(milliseconds patience) {
  if (device_) {
    device_->arm();
    poll_completions();
    make_connections();
    for (auto& [name, partner] : peers_) post_messages(*partner);
  }
  wait(wait_max(patience));
  obey(ppmr_rdma_next(&rdma_));
  if (!device_) return;
  accept_strangers();
  for (auto& [name, partner] : peers_) continue_exchange(*partner);
  poll_completions();
  for (auto& [name, partner] : peers_) post_messages(*partner);
  if (releasing_) continue_release();
}

milliseconds Messenger::wait_max(milliseconds patience) const {
  const int until_resume = ppmr_rdma_timeout_ms(&rdma_);
  if (until_resume >= 0) patience = std::min(patience, milliseconds(until_resume));
  bool waits = releasing_ || !strangers_.empty();
  for (const auto& [name, partner] : peers_) {
    waits = waits || partner->exchange || (!partner->queue.empty() && !partner->is_open);
  }
  return waits ? std::min(patience, kLookAgain) : patience;
}

void Messenger::wait(milliseconds patience) {
  std::vector<pollfd> files;
  const auto add = [&](int fd, short events) {
    files.push_back({.fd = fd, .events = events, .revents = 0});
  };
  // During a release the request stays unanswered. A further request would make each poll return at
  // once.
  if (!releasing_) add(ppmr_rdma_fd(&rdma_), POLLIN);
  if (device_) add(device_->fd(), POLLIN);
  if (rendezvous_) add(rendezvous_->fd(), POLLIN);
  for (const auto& stranger : strangers_) add(stranger->exchange.fd(), stranger->exchange.events());
  for (const auto& [name, partner] : peers_) {
    if (partner->exchange) add(partner->exchange->fd(), partner->exchange->events());
  }
  ::poll(files.data(), files.size(), static_cast<int>(patience.count()));
}

void Messenger::poll_completions() {
  ibv_wc completion;
  while (device_->next(completion)) {
    for (auto& [name, partner] : peers_) {
      if (!partner->pair || partner->pair->id() != QueuePair::id_of(completion)) continue;
      complete(*partner, completion);
      break;
    }
  }
}

void Messenger::complete(Peer& peer, const ibv_wc& completion) {
  if (completion.status != IBV_WC_SUCCESS) {
    lose(peer, ibv_wc_status_str(completion.status));
    return;
  }
  if (!QueuePair::is_receive(completion)) {
    peer.pair->sent(completion);
    return;
  }
  const auto bytes = peer.pair->received(completion);
  Head head;
  if (bytes.size() < sizeof head) throw Failure("a message from " + peer.name + " is too short");
  std::memcpy(&head, bytes.data(), sizeof head);
  const auto body = bytes.subspan(sizeof head);
  if (head.length != body.size()) throw Failure("a message from " + peer.name + " is incomplete");
  peer.retry_delay = milliseconds(0);
  receive(peer, head, body);
  peer.pair->repost(completion);
}

void Messenger::receive(Peer& peer, const Head& head, std::span<const std::byte> body) {
  acknowledge_up_to(peer, head.acknowledged);
  switch (head.kind) {
    case Kind::kData:
      return receive_data(peer, head, body);
    case Kind::kAcknowledgement:
      return;
    case Kind::kShutdown:
      peer.owes_answer = true;
      return;
    case Kind::kAnswer:
      peer.has_answer = true;
      return;
  }
  throw Failure("a message of an unknown kind from " + peer.name);
}

void Messenger::receive_data(Peer& peer, const Head& head, std::span<const std::byte> body) {
  if (head.number <= peer.received) {
    ++counters_.discarded;
    // The partner sends the message again because the acknowledgement was lost.
    peer.confirmed = std::min(peer.confirmed, head.number - 1);
    return;
  }
  if (head.number != peer.received + 1) throw Failure("a message from " + peer.name + " is lost");
  peer.received = head.number;
  deliver_(peer.name, body);
}

void Messenger::acknowledge_up_to(Peer& peer, uint64_t number) {
  if (number >= peer.first + peer.queue.size()) {
    throw Failure(peer.name + " acknowledges a message that was not sent");
  }
  while (peer.first <= number) {
    peer.queue.pop_front();
    ++peer.first;
    // A message that was sent on the last connection may be acknowledged before it is sent again.
    if (peer.posted > 0) --peer.posted;
  }
}

void Messenger::post(Peer& peer, Kind kind, uint64_t number, std::span<const std::byte> body) {
  const Head head{.kind = kind,
                  .length = static_cast<uint32_t>(body.size()),
                  .number = number,
                  .acknowledged = peer.received};
  peer.pair->send(bytes_of(head), body);
  peer.confirmed = peer.received;
}

// After a shutdown or the answer to one, this end sends no more data on the connection. When both
// ends shut it down at once, neither answers.
void Messenger::post_messages(Peer& peer) {
  if (!peer.is_open) return;
  try {
    const auto may_send = [&] { return peer.pair->can_send(); };
    const bool ends = peer.says_shutdown || peer.owes_answer;
    while (!ends && peer.posted < std::min(peer.queue.size(), kWindow) && may_send()) {
      const uint64_t number = peer.first + peer.posted;
      if (number <= peer.tried) ++counters_.sent_again;
      peer.tried = std::max(peer.tried, number);
      post(peer, Kind::kData, number, peer.queue[peer.posted]);
      ++peer.posted;
    }
    if (peer.says_shutdown && !peer.owes_answer && !peer.has_said_shutdown && may_send()) {
      post(peer, Kind::kShutdown, 0, {});
      peer.has_said_shutdown = true;
    }
    if (peer.owes_answer && !peer.has_said_shutdown && !peer.has_answered && may_send()) {
      post(peer, Kind::kAnswer, 0, {});
      peer.has_answered = true;
    }
    const bool is_over = peer.has_answered || peer.has_answer;
    if (peer.confirmed < peer.received && !is_over && may_send()) {
      post(peer, Kind::kAcknowledgement, 0, {});
    }
  } catch (const Failure& failure) {
    return lose(peer, failure.what());
  }
  // When all slots are free, the last data of this end has arrived at the partner.
  const bool has_ended = peer.has_said_shutdown || peer.has_answered;
  const bool is_shut = peer.owes_answer ? has_ended && peer.pair->is_idle() : peer.has_answer;
  if (is_shut) {
    disconnect(peer);
    retry_later(peer);
  }
}

}  // namespace verbs_messages
