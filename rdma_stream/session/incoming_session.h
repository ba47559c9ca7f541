// One source's session at the target: applies the source's messages in order, chooses the order of
// the pulls, verifies the bytes that arrive and releases the slots.
//
// The states of a chunk: announced -> queued -> (starved while the store has no memory for it:
// other files go first) -> pulled by the mover -> verified -> landed -> released. A small chunk
// travels inside its announcement and goes from announced to verified at once. If the store has no
// memory for it, the target drops these bytes and later pulls the chunk like the others, because
// the source still has it: the target stores payload only in the image store.
//
// Chunks in flight do not overlap (see FileStream). A faulty source may announce overlapping
// chunks: then the contents of the common bytes are undefined, or a checksum fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "rdma_stream/connection/log_rate.h"
#include "rdma_stream/control/channel.h"
#include "rdma_stream/mover/mover.h"
#include "rdma_stream/mover/sink.h"
#include "rdma_stream/mover/slot_ring.h"
#include "rdma_stream/mover/tcp_puller.h"
#include "rdma_stream/session/compression.h"
#include "rdma_stream/session/protection.h"
#include "rdma_stream/session/transport.h"

namespace ppmr {

struct SessionReport {
  SessionId id = 0;
  std::string source_name;
  std::string peer;
  std::string security;        // PeerIdentity::text()
  std::string encryption;      // protection of the chunks: to_string(wire::Protection)
  std::string encryption_why;  // the reason for this protection
  wire::Transport transport = wire::Transport::kTcp;
  std::string transport_why;  // the reason for this choice
  bool connected = false;
  std::chrono::milliseconds silence_max{0};  // silence after which the session fails
  std::chrono::milliseconds silence{0};
  std::chrono::milliseconds age{0};
  uint64_t received_bytes = 0;  // bytes that have landed
  uint64_t wire_bytes = 0;      // their length on the wire: less if they were compressed
  uint64_t chunks = 0;
  uint64_t wrong_chunks = 0;     // chunks whose checksum or authentication tag was wrong
  uint64_t pulled_again = 0;     // pulls repeated after a lost connection or a wrong checksum
  uint64_t waits_for_space = 0;  // number of times that a chunk found no memory and waited
  size_t queued_chunks = 0;
  size_t pulling_chunks = 0;
};

// Threads: any; run_control() serialises its callers.
class IncomingSession final {
 public:
  struct Options {
    SessionId id = 0;
    wire::ControlHello hello;
    std::string opened_by;  // the address of the source
    wire::Token token{};
    PeerIdentity identity;
    std::shared_ptr<ChunkProtection> protection;
    std::shared_ptr<Decompressor> decompressor;
    ChannelOptions channel;  // its timings are those of the session
    TargetTransport transport;
  };
  // `hello` must be valid. The caller reports session_opened() to the sink. Throws
  // std::system_error when a thread cannot be started.
  IncomingSession(Options options, Sink& sink);
  ~IncomingSession();

  // Welcomes the source and serves the control connection until it is lost, which is no error.
  // Errors: the result of over() if the session must end; those of sending the welcome.
  Status run_control(std::shared_ptr<Connection> connection, uint64_t source_received_sequence,
                     const std::string& target_name);
  // Returns whether the source of this session sent the data hello.
  bool proves(const wire::DataHello& hello) const;
  // Records the attempt number of a data hello. Returns false if the number is not new, as in a
  // replayed hello.
  bool accept_attempt(const wire::DataHello& hello);
  Status attach_stream(uint32_t stream, std::shared_ptr<Connection> connection);

  // Called when the store may have memory again: retries the chunks that wait for memory.
  void space_freed();
  // Pulls these bytes first, because a reader waits for them.
  void prioritize(uint64_t node, uint64_t offset, uint64_t length);
  // Requests bytes that the source has not announced, and pulls them first as soon as they are
  // announced. Never blocks. Has no effect if the same bytes are requested already, or if the
  // outbox is full.
  void want(uint64_t node, uint64_t offset, uint64_t length);
  // The next three functions send a message to the source and never block. Errors: ENOBUFS, those
  // of the session.
  Status request_seal(uint64_t checkpoint);
  void notify_removed(uint64_t checkpoint);
  void notify_space(const wire::Space& space);

  // Returns the reason if the session must end: the source sent a goodbye, was silent for the peer
  // timeout, broke the protocol, or does not deliver announced chunks; or no transport is left.
  std::optional<Error> over() const;
  // Ends the session and abandons chunks that have not landed. After it has returned, the session
  // makes no more calls to the sink. The caller then calls the sink's session_ended().
  void end(const Error& reason);

  SessionId id() const { return options_.id; }
  const wire::Token& session_token() const { return options_.hello.session; }
  const wire::Token& token() const { return options_.token; }
  const PeerIdentity& identity() const { return options_.identity; }
  const std::string& opened_by() const { return options_.opened_by; }
  uint64_t received_sequence() const { return channel_.received_sequence(); }
  SessionReport report() const;

 private:
  std::chrono::milliseconds silence_max() const {
    return std::max(options_.channel.timings.peer_timeout, patience_.load());
  }
  enum class ChunkState : uint8_t { kIdle, kQueued, kPulling };
  struct ChunkEntry {
    ChunkState state = ChunkState::kIdle;
    wire::Announce announce;
    uint32_t attempts = 0;
    bool wanted = false;  // a reader waits for the chunk
    bool has_landing = false;
    Landing landing;
  };

  struct FileRange {
    uint64_t node = 0;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  // The queue of one mover. Only the queue of the chosen transport returns pulls. An exception of
  // the sink ends the session, not the mover's thread.
  class Port final : public PullQueue {
   public:
    Port(IncomingSession& session, wire::Transport transport)
        : session_(session), transport_(transport) {}
    bool take(Pull& pull, bool wait) override;
    void completed(const Pull& pull) override;
    void lost(const Pull& pull) override;

   private:
    IncomingSession& session_;
    const wire::Transport transport_;
  };

  bool take(wire::Transport mover, Pull& pull, bool wait);
  void completed(const Pull& pull);
  void lost(const Pull& pull);
  void wake_mover_locked() PPMR_REQUIRES(mutex_);

  Status handle(wire::MessageType type, std::span<const std::byte> body);
  template <typename Message>
  Status apply(std::span<const std::byte> body,
               Status (Sink::*operation)(SessionId, const Message&));
  template <typename Message>
  Status apply_request(std::span<const std::byte> body,
                       Status (Sink::*operation)(SessionId, const Message&));
  Status handle_announce(const wire::Announce& announce, std::span<const std::byte> inline_bytes);
  Status handle_read_back(const wire::ReadBack& message);
  Status handle_transport_offer(const wire::TransportOffer& offer);
  // Tries the transport of `decision`. If that fails, continues over TCP unless `decision` forbids
  // it.
  Status start_offered(const wire::TransportOffer& offer, const TransportDecision& decision);
  Status choose_transport(wire::Transport transport, const std::string& why);

  bool must_starve_locked(uint32_t slot) const PPMR_REQUIRES(mutex_);
  void begin_waiting_locked() PPMR_REQUIRES(mutex_);
  bool is_urgent_locked(uint32_t slot) const PPMR_REQUIRES(mutex_);
  void queue_locked(uint32_t slot) PPMR_REQUIRES(mutex_);
  void warn(const Error& error);
  bool take_wanted_locked(uint64_t node, uint64_t offset, uint64_t length) PPMR_REQUIRES(mutex_);
  Status reserve(ChunkEntry& entry);
  Status verify(const ChunkEntry& entry);
  void pull_again(uint32_t slot);
  void land(uint32_t slot, Status status);
  void push_releases_locked(bool at_once = false) PPMR_REQUIRES(mutex_);
  NodeKey key(uint64_t node) const { return {options_.id, node}; }

  const Options options_;
  Sink& sink_;
  const std::chrono::steady_clock::time_point opened_at_ = std::chrono::steady_clock::now();

  mutable Mutex mutex_;
  CondVar queue_changed_;  // wakes take()
  // By slot; the number of entries is constant. mutex_ guards the entries, except that the puller
  // owns those in state kPulling, and the thread of run_control() those in state kIdle.
  std::vector<ChunkEntry> chunks_;
  SlotRing urgent_queue_ PPMR_GUARDED_BY(mutex_);
  SlotRing queue_ PPMR_GUARDED_BY(mutex_);
  SlotRing starved_ PPMR_GUARDED_BY(mutex_);
  // Requested ranges; the oldest first; at most kWantedMax.
  std::deque<FileRange> wanted_ PPMR_GUARDED_BY(mutex_);
  FileRange last_announced_ PPMR_GUARDED_BY(mutex_);  // the range of the latest chunk
  // See kFetchingMaxForLeaps.
  std::chrono::steady_clock::time_point last_leap_ PPMR_GUARDED_BY(mutex_){};
  size_t pulling_ PPMR_GUARDED_BY(mutex_) = 0;
  // Releases in the outbox that wait to be sent together with later releases.
  size_t releases_held_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t space_events_ PPMR_GUARDED_BY(mutex_) = 0;
  // The time when a chunk last arrived, or the first chunk was queued.
  std::chrono::steady_clock::time_point pull_progress_ PPMR_GUARDED_BY(mutex_);
  // Last accepted attempt number of a data hello, by stream.
  std::vector<uint64_t> last_attempts_ PPMR_GUARDED_BY(mutex_);
  bool ended_ PPMR_GUARDED_BY(mutex_) = false;
  std::optional<Error> over_ PPMR_GUARDED_BY(mutex_);
  wire::Transport transport_ PPMR_GUARDED_BY(mutex_) = wire::Transport::kTcp;
  std::string transport_why_ PPMR_GUARDED_BY(mutex_);

  bool offered_ = false;  // used by the thread of run_control()
  std::atomic<std::chrono::milliseconds>
      patience_{};                    // how long this side waits for a silent source
  std::atomic<size_t> fetching_ = 0;  // pulls whose bytes have not arrived yet
  std::atomic<uint64_t> received_bytes_ = 0;
  std::atomic<uint64_t> wire_bytes_ = 0;
  std::atomic<uint64_t> chunks_landed_ = 0;
  std::atomic<uint64_t> wrong_chunks_ = 0;
  std::atomic<uint64_t> pulled_again_ = 0;
  std::atomic<uint64_t> waits_for_space_ = 0;
  LogRate warnings_;

  // Destroyed from the last member to the first: threads end before the members that they use.
  Channel channel_;
  Mutex control_mutex_;  // held during run_control()
  Port tcp_port_{*this, wire::Transport::kTcp};
  // The queue of the mover that the source offers and this side tries; empty until then. mutex_ is
  // held when offered_puller_ is set.
  std::optional<Port> offered_port_;
  std::unique_ptr<TcpPuller> tcp_puller_;
  std::unique_ptr<Puller> offered_puller_;
};

}  // namespace ppmr
