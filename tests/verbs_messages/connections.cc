// Makes and ends the connections of a Messenger, and obeys ppmr's requests.
#include <algorithm>
#include <cstdio>

#include "tests/verbs_messages/messenger.h"

namespace verbs_messages {
namespace {

using std::chrono::milliseconds;

// The time limit for the answer of a partner that is busy or runs on an emulated machine.
constexpr milliseconds kExchangeMax{5000};
constexpr milliseconds kDrainMax{2000};
constexpr milliseconds kRetryMin{100}, kRetryMax{1000};
constexpr milliseconds kOpenAgain{1000};

// After a move the clock is the clock of another machine. A moment in the far future was not set
// with this clock, so it counts as due.
bool is_due(Messenger::Clock::time_point moment) {
  const auto now = Messenger::Clock::now();
  return now >= moment || moment - now > 2 * kExchangeMax;
}

}  // namespace

Messenger::Messenger(std::string name, std::filesystem::path directory, Deliver deliver)
    : name_(std::move(name)), directory_(std::move(directory)), deliver_(std::move(deliver)) {
  if (ppmr_rdma_open(&rdma_) != 0) fail("register for moves");
  open();
}

Messenger::~Messenger() {
  for (auto& [name, partner] : peers_) disconnect(*partner);
  ppmr_rdma_close(&rdma_);
}

Messenger::Peer& Messenger::peer(const std::string& name) {
  auto& found = peers_[name];
  if (!found) found = std::make_unique<Peer>(name);
  return *found;
}

void Messenger::open() {
  auto device = std::make_unique<Device>();
  rendezvous_ = std::make_unique<Rendezvous>(directory_, name_, device->address());
  device_ = std::move(device);
}

// ---- release and resume ----

void Messenger::obey(ppmr_rdma_request request) {
  if (request == PPMR_RDMA_RELEASE && !device_) return ppmr_rdma_done(&rdma_, nullptr);
  if (request == PPMR_RDMA_RELEASE) return begin_release();
  const bool tries_again = !device_ && rdma_.deadline_ms == 0 && !leaving_;
  if (request == PPMR_RDMA_RESUME || (tries_again && is_due(resume_retry_at_))) resume();
}

void Messenger::begin_release() {
  releasing_ = true;
  release_deadline_ = Clock::now() + kDrainMax;
  // From now on no socket listens, because CRIU cannot dump a connection that waits to be accepted.
  rendezvous_.reset();
  strangers_.clear();
  for (auto& [name, partner] : peers_) {
    if (partner->is_open) {
      partner->says_shutdown = true;
    } else {
      disconnect(*partner);
    }
  }
}

void Messenger::continue_release() {
  const bool all_shut =
      std::ranges::none_of(peers_, [](const auto& entry) { return entry.second->pair != nullptr; });
  if (!all_shut && !is_due(release_deadline_)) return;
  for (auto& [name, partner] : peers_) disconnect(*partner);
  device_.reset();
  releasing_ = false;
  ++counters_.releases;
  ppmr_rdma_done(&rdma_, nullptr);
}

void Messenger::resume() {
  try {
    if (!device_) open();
  } catch (const Failure& failure) {
    resume_retry_at_ = Clock::now() + kOpenAgain;
    return ppmr_rdma_done(&rdma_, failure.what());
  }
  ++counters_.resumes;
  for (auto& [name, partner] : peers_) {
    partner->retry_at = Clock::now();
    partner->retry_delay = milliseconds(0);
  }
  ppmr_rdma_done(&rdma_, nullptr);
}

void Messenger::leave() {
  leaving_ = true;
  if (!device_) return;
  if (!releasing_) begin_release();
  while (device_) progress(milliseconds(50));
}

// ---- connections ----

void Messenger::accept_strangers() {
  while (rendezvous_) {
    auto exchange = rendezvous_->accept();
    if (!exchange) break;
    strangers_.push_back(std::make_unique<Stranger>(
        Stranger{.exchange = std::move(*exchange), .deadline = Clock::now() + kExchangeMax}));
  }
  std::vector<std::unique_ptr<Stranger>> waiting;
  for (auto& stranger : strangers_) {
    try {
      const auto hello = stranger->exchange.receive_hello();
      if (hello) {
        welcome(std::move(stranger->exchange), *hello);
      } else if (!is_due(stranger->deadline)) {
        waiting.push_back(std::move(stranger));
      }
    } catch (const Failure&) {
      // The exchange is closed, so the partner tries again.
    }
  }
  strangers_ = std::move(waiting);
}

void Messenger::welcome(Exchange exchange, const Hello& hello) {
  if (name_ != hello.to.data() || name_ == hello.from.data()) return;
  Peer& partner = peer(hello.from.data());
  // Both ends connect at once. The attempt of the end with the lower name continues.
  if (partner.exchange && partner.is_active && name_ < partner.name) return;
  // A partner that requests a connection has lost the old one.
  disconnect(partner);
  partner.exchange.emplace(std::move(exchange));
  partner.exchange_deadline = Clock::now() + kExchangeMax;
  partner.is_active = false;
  try {
    make_pair(partner);
    partner.pair->connect(hello.queue_pair);
    partner.exchange->send_hello(make_hello(name_, partner.name, partner.pair->address()));
  } catch (const Failure& failure) {
    lose(partner, failure.what());
  }
}

void Messenger::make_connections() {
  if (releasing_) return;
  for (auto& [name, partner] : peers_) {
    const bool wants = !partner->queue.empty() && !partner->is_open && !partner->exchange;
    if (wants && is_due(partner->retry_at)) begin_exchange(*partner);
  }
}

void Messenger::begin_exchange(Peer& peer) {
  const auto address = find_address(directory_, peer.name);
  if (!address) return retry_later(peer);
  try {
    peer.exchange.emplace(Exchange::connect_to(*address));
    peer.exchange_deadline = Clock::now() + kExchangeMax;
    peer.is_active = true;
  } catch (const Failure&) {
    disconnect(peer);
    retry_later(peer);
  }
}

void Messenger::continue_exchange(Peer& peer) {
  if (!peer.exchange) return;
  try {
    if (is_due(peer.exchange_deadline)) throw Failure("the partner does not answer");
    if (!peer.is_active) {
      if (peer.exchange->receive_ready()) set_open(peer);
      return;
    }
    if (!peer.exchange->connected()) return;
    if (!peer.pair) {
      make_pair(peer);
      peer.exchange->send_hello(make_hello(name_, peer.name, peer.pair->address()));
    }
    if (const auto hello = peer.exchange->receive_hello()) {
      peer.pair->connect(hello->queue_pair);
      peer.exchange->send_ready();
      set_open(peer);
    }
  } catch (const Failure&) {
    disconnect(peer);
    retry_later(peer);
  }
}

void Messenger::make_pair(Peer& peer) {
  peer.pair = std::make_unique<QueuePair>(*device_, ++last_pair_id_);
}

void Messenger::set_open(Peer& peer) {
  peer.exchange.reset();
  peer.is_open = true;
  ++counters_.connections;
}

void Messenger::disconnect(Peer& peer) {
  peer.exchange.reset();
  peer.pair.reset();
  peer.is_open = peer.is_active = false;
  peer.posted = 0;
  peer.says_shutdown = peer.has_said_shutdown = peer.has_answer = false;
  peer.owes_answer = peer.has_answered = false;
}

void Messenger::retry_later(Peer& peer) {
  peer.retry_delay = std::clamp(2 * peer.retry_delay, kRetryMin, kRetryMax);
  peer.retry_at = Clock::now() + peer.retry_delay;
}

void Messenger::lose(Peer& peer, const std::string& why) {
  fprintf(stderr, "%s: the connection to %s is lost: %s\n", name_.c_str(), peer.name.c_str(),
          why.c_str());
  ++counters_.broken;
  disconnect(peer);
  retry_later(peer);
}

}  // namespace verbs_messages
