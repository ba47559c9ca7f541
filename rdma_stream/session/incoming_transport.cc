// The target chooses the transport by what the source offers, what the target has, and whether RDMA
// connections can be opened. A session that loses its last RDMA connection continues over TCP until
// it ends. With --transport verbs on either side it ends instead.
#include "rdma_stream/session/incoming_session.h"
#include "rdma_stream/verbs/verbs_puller.h"
#include "third_party/spdlog.h"

namespace ppmr {

Status IncomingSession::handle_transport_offer(const wire::TransportOffer& offer) {
  if (std::exchange(offered_, true))
    return failure(EPROTO, "the source offered its transports twice");
  const auto mode = static_cast<TransportMode>(offer.mode);
  if (mode != TransportMode::kAuto && mode != TransportMode::kVerbs &&
      mode != TransportMode::kTcp) {
    return failure(EPROTO, "unknown transport mode " + std::to_string(offer.mode));
  }
  if (offer.why_no_rails.size() > wire::kTextMaxBytes) {
    return failure(EPROTO, "the text of the transport offer is too long");
  }
  if (auto checked =
          VerbsPuller::check(offer, options_.hello.slot_count, options_.hello.chunk_size_bytes);
      !checked) {
    return checked;
  }
  const TransportSide source{mode, offer.rail_count > 0, offer.why_no_rails};
  const TransportSide target{options_.transport.mode, options_.transport.verbs != nullptr,
                             options_.transport.why_no_verbs};
  const TransportDecision decision = decide_transport(source, target);
  if (decision.transport != wire::Transport::kVerbs) {
    return choose_transport(decision.transport, decision.why);
  }
  return start_offered(offer, decision);
}

Status IncomingSession::start_offered(const wire::TransportOffer& offer,
                                      const TransportDecision& decision) {
  const bool has_no_other = decision.has_no_other;
  offered_port_.emplace(*this, decision.transport);
  VerbsPuller::Options options;
  options.offer = offer;
  options.stream_count = options_.hello.stream_count;
  options.connect_timeout = options_.channel.timings.verbs_connect_max;
  // An interruption shorter than the peer timeout must not end the session. If TCP can take over,
  // reads fail early enough to leave time for that. If not, the queue pairs retransmit until the
  // peer timeout.
  options.read_timeout = has_no_other ? options_.channel.timings.peer_timeout
                                      : options_.channel.timings.connection_silence_max;
  VerbsPuller::Events events;
  events.available = [this](const std::string& description) {
    (void)choose_transport(wire::Transport::kVerbs, description);
  };
  events.unavailable = [this, has_no_other](const Error& why) {
    (void)choose_transport(has_no_other ? wire::Transport::kNone : wire::Transport::kTcp,
                           "no RDMA connection left: " + why.message);
  };
  auto puller =
      VerbsPuller::create(options, *options_.transport.verbs, *offered_port_, std::move(events));
  if (!puller) {
    return choose_transport(has_no_other ? wire::Transport::kNone : wire::Transport::kTcp,
                            puller.error().message);
  }
  MutexLock lock(mutex_);
  if (ended_) return {};  // destroys the puller
  offered_puller_ = std::move(*puller);
  wake_mover_locked();
  return {};
}

Status IncomingSession::choose_transport(wire::Transport transport, const std::string& why) {
  {
    MutexLock lock(mutex_);
    if (ended_) return {};
    transport_ = transport;
    transport_why_ = why;
    if (transport == wire::Transport::kNone && !over_) over_ = Error{EPROTO, why};
    begin_waiting_locked();
    wake_mover_locked();
    queue_changed_.notify_all();
  }
  const std::string& source = options_.hello.source_name;
  if (transport == wire::Transport::kVerbs) {
    spdlog::info("source {}: transport verbs, not tcp: {}", source, why);
  } else if (transport == wire::Transport::kTcp) {
    spdlog::info("source {}: transport tcp, not verbs: {}", source, why);
  } else {
    spdlog::error("source {}: no transport: {}", source, why);
  }
  return channel_.send(wire::TransportChoice{transport, why.substr(0, wire::kTextMaxBytes)});
}

}  // namespace ppmr
