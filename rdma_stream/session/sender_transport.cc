// The source's half of the choice of transport: its offer to the target, and the target's choice.
#include "rdma_stream/session/sender.h"
#include "rdma_stream/verbs/verbs_source.h"
#include "third_party/spdlog.h"

namespace ppmr {

// Sends the first message of a session.
void Sender::offer_transport() {
  const SourceTransport& transport = *options_.transport;
  wire::TransportOffer offer;
  std::string why = transport.why_no_verbs;
  if (transport.verbs != nullptr && transport.mode != TransportMode::kTcp) {
    auto loan = transport.verbs->lend(pool_, options_.stream_count);
    if (loan) {
      offer = (*loan)->offer();
      loan_ = std::move(*loan);
    } else {
      why = loan.error().message;
    }
  }
  offer.mode = static_cast<uint16_t>(transport.mode);
  if (offer.rail_count == 0) offer.why_no_rails = why.substr(0, wire::kTextMaxBytes);
  (void)channel_.send(offer);
}

Status Sender::await_transport() {
  MutexLock lock(transport_mutex_);
  transport_chosen_.wait_for(
      transport_mutex_, timings_.peer_timeout,
      [this]() PPMR_REQUIRES(transport_mutex_) { return transport_ || channel_.failed(); });
  if (auto failed = channel_.failed()) return failure(*failed);
  if (!transport_) {
    return failure(ETIMEDOUT,
                   "the target " + connector_.target() + " did not choose a transport in time");
  }
  return {};
}

Status Sender::handle_transport_choice(const wire::TransportChoice& choice) {
  if (choice.transport != wire::Transport::kVerbs && choice.transport != wire::Transport::kTcp) {
    return failure(EIO, "no transport to the target " + connector_.target() + ": " + choice.why);
  }
  // The target never returns from TCP to verbs, so unregister the pool.
  if (choice.transport == wire::Transport::kTcp) loan_.reset();
  {
    MutexLock lock(transport_mutex_);
    transport_ = choice;
  }
  transport_chosen_.notify_all();
  spdlog::info("target {}: transport {}, not {}: {}", connector_.target(),
               to_string(choice.transport),
               choice.transport == wire::Transport::kVerbs ? "tcp" : "verbs", choice.why);
  return {};
}

}  // namespace ppmr
