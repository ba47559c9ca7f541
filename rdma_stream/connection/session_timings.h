// Every time limit of a session, derived from `--peer-timeout`.
#pragma once

#include <algorithm>
#include <chrono>

namespace ppmr {

// The longest time for which a session waits for a silent peer, even if the peer requests a longer
// patience. The limit exists because the session's checkpoints take memory during the wait.
inline constexpr std::chrono::milliseconds kPatienceMax = std::chrono::hours(1);

struct SessionTimings {
  using Time = std::chrono::milliseconds;

  static constexpr SessionTimings from_peer_timeout(Time peer_timeout) {
    SessionTimings timings;
    timings.peer_timeout = peer_timeout;
    timings.connection_silence_max = peer_timeout / 2;
    timings.heartbeat_interval = std::clamp(peer_timeout / 10, Time(5), Time(1000));
    timings.handshake_max = std::min(peer_timeout, Time(5000));
    timings.attempt_max = std::max(peer_timeout / 5, Time(1));
    timings.retry_interval = std::clamp(peer_timeout / 50, Time(1), Time(200));
    timings.goodbye_max = std::min(peer_timeout, Time(1000));
    timings.watch_interval = std::clamp(peer_timeout / 20, Time(5), Time(250));
    timings.read_answer_max = peer_timeout / 4;
    timings.no_payload_max = peer_timeout * 3;
    timings.verbs_connect_max = std::min(peer_timeout / 5, Time(2000));
    return timings;
  }

  // Silence after which the session fails. wire::Patience prolongs it.
  Time peer_timeout;
  // Silence after which one connection is closed. It is half the peer timeout, so that a
  // reconnection fits into the other half.
  Time connection_silence_max;
  // Pause between two heartbeats of an idle control connection. Several heartbeats may be lost
  // before the connection counts as silent.
  Time heartbeat_interval;
  // Target: time for a TLS handshake or a hello. Limited, because an unauthenticated peer occupies
  // a thread during this time.
  Time handshake_max;
  // Source: time to connect and exchange hellos once. Several attempts fit into the peer timeout.
  Time attempt_max;
  // Pause between two attempts to connect.
  Time retry_interval;
  // Source: time to send the goodbye when a session is closed.
  Time goodbye_max;
  // Target: how often the receiver checks its sessions.
  Time watch_interval;
  // Target: time for the answer to a read request over TCP. Shorter than the silence after which a
  // connection is closed, so that another connection can repeat the request in time.
  Time read_answer_max;
  // Target: the session fails after this time without any payload, although chunks are announced
  // and the source is alive. Longer than the peer timeout, as the largest chunk may take that long
  // on a slow link.
  Time no_payload_max;
  // Target: time to connect a queue pair. Limited, because the end of a session waits for it.
  Time verbs_connect_max;
};

}  // namespace ppmr
