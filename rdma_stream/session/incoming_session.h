// One source's session at the target: acts on its messages in order, decides which chunk is pulled
// when, verifies what arrives and releases the slots.
//
// A chunk's way: announced -> (held back while an earlier one overlaps it) -> queued -> (starved
// while the store has no memory for it: other files go first) -> pulled by the mover -> verified ->
// landed -> released. Chunks small enough come with their announcement and go from announced to
// verified at once; when they cannot, they are pulled like the others, as the source still holds
// them: nothing is kept here outside of the store.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "rdma_stream/control/channel.h"
#include "rdma_stream/mover/mover.h"
#include "rdma_stream/mover/sink.h"
#include "rdma_stream/mover/slot_ring.h"
#include "rdma_stream/mover/tcp_puller.h"
#include "rdma_stream/session/announced_ranges.h"
#include "rdma_stream/session/transport.h"
#include "rdma_stream/verbs/verbs_puller.h"

namespace ppmr {

// How bytes may travel to this target.
struct TargetTransport {
  TransportMode mode = TransportMode::kAuto;
  VerbsTarget* verbs = nullptr;  // null: there is no RDMA here
  std::string why_no_verbs = "not set up";
};

struct SessionReport {
  SessionId id = 0;
  std::string source_name;
  std::string peer;
  std::string security;  // PeerIdentity::text()
  wire::Transport transport = wire::Transport::kTcp;
  std::string transport_why;  // and why not the other
  bool connected = false;
  std::chrono::milliseconds silence{0};
  std::chrono::milliseconds age{0};
  uint64_t received_bytes = 0;  // landed
  uint64_t chunks = 0;
  uint64_t pulled_again = 0;     // after a lost connection or a wrong checksum
  uint64_t waits_for_space = 0;  // times a chunk found no memory and waited
  size_t queued_chunks = 0;
  size_t pulling_chunks = 0;
};

// Threads: any, but for run_control() (one at a time).
class IncomingSession final {
 public:
  struct Options {
    SessionId id = 0;
    wire::ControlHello hello;
    wire::Token token{};
    PeerIdentity identity;
    SessionTimings timings{};
    TargetTransport transport;
  };
  // `hello` was checked. The sink hears session_opened() from the caller.
  IncomingSession(Options options, Sink& sink);
  ~IncomingSession();

  // Welcomes the source and serves the control connection until it is lost. Errors: the welcome was
  // not sent; what over() says.
  Status run_control(std::shared_ptr<Connection> connection, uint64_t source_received_sequence,
                     const std::string& target_name);
  // Whether a data hello that names this session is of its source. Each is admitted once: its
  // number is used up.
  bool proves(const wire::DataHello& hello) const;
  bool use_up(const wire::DataHello& hello);
  Status attach_stream(uint32_t stream, std::shared_ptr<Connection> connection);

  // Memory that reserve() had to wait for may be there.
  void space_freed();
  // A reader waits for these bytes: they go first.
  void hurry(uint64_t node, uint64_t offset, uint64_t length);
  Status request_seal(uint64_t checkpoint);
  void tell_removed(uint64_t checkpoint);
  void tell_space(const wire::Space& space);

  // Why the session is over (the source said goodbye, is silent for too long, broke the protocol,
  // does not give what it announced), if it is.
  std::optional<Error> over() const;
  // Ends it: no sink call is under way or follows when this returns, but session_ended() by the
  // caller. Chunks not landed are abandoned.
  void end(const Error& reason);

  SessionId id() const { return options_.id; }
  const wire::Token& session_token() const { return options_.hello.session; }
  const wire::Token& token() const { return options_.token; }
  const PeerIdentity& identity() const { return options_.identity; }
  uint64_t received_sequence() const { return channel_.received_sequence(); }
  SessionReport report() const;

 private:
  enum class ChunkState : uint8_t { kIdle, kHeldBack, kQueued, kPulling };
  struct ChunkEntry {
    ChunkState state = ChunkState::kIdle;
    wire::Announce announce;
    uint32_t attempts = 0;
    bool has_landing = false;
    Landing landing;
  };

  // What a mover sees of the session: pulls come to the one that is chosen.
  class Port final : public PullQueue {
   public:
    Port(IncomingSession& session, wire::Transport transport)
        : session_(session), transport_(transport) {}
    bool take(Pull& pull, bool wait) override { return session_.take(transport_, pull, wait); }
    void completed(const Pull& pull) override { session_.completed(pull); }
    void lost(const Pull& pull) override { session_.lost(pull); }

   private:
    IncomingSession& session_;
    const wire::Transport transport_;
  };

  bool take(wire::Transport mover, Pull& pull, bool wait);
  void completed(const Pull& pull);
  void lost(const Pull& pull);
  void wake_mover_locked();

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
  Status start_verbs(const wire::TransportOffer& offer, bool verbs_only);
  Status choose_transport(wire::Transport transport, const std::string& why);

  bool behind_starved_locked(uint32_t slot) const;
  void begin_waiting_locked();
  void queue_locked(uint32_t slot);
  Status reserve(ChunkEntry& entry);
  Status verify(const ChunkEntry& entry) const;
  void pull_again(uint32_t slot);
  void land(uint32_t slot, Status status);
  void tell_releases_locked();
  NodeKey key(uint64_t node) const { return {options_.id, node}; }

  const Options options_;
  Sink& sink_;
  const std::chrono::steady_clock::time_point opened_at_ = std::chrono::steady_clock::now();

  mutable std::mutex mutex_;
  std::condition_variable queue_changed_;  // for those who wait in take()
  // Guarded by mutex_.
  std::vector<ChunkEntry> chunks_;  // by slot; while kPulling an entry is its puller's
  AnnouncedRanges ranges_;
  SlotRing urgent_queue_;
  SlotRing queue_;
  SlotRing held_back_;
  SlotRing starved_;
  size_t pulling_ = 0;
  size_t releases_held_ = 0;  // of chunks that landed: not told yet
  uint64_t space_events_ = 0;
  std::chrono::steady_clock::time_point
      pull_progress_;                    // when a chunk last came, or was first asked for
  std::vector<uint64_t> last_attempts_;  // of data hellos, by stream
  bool ended_ = false;
  std::optional<Error> over_;
  bool offered_ = false;
  wire::Transport transport_ = wire::Transport::kTcp;
  std::string transport_why_;

  std::atomic<size_t> fetching_ = 0;  // of those pulling: waiting for their bytes
  std::atomic<uint64_t> received_bytes_ = 0;
  std::atomic<uint64_t> chunks_landed_ = 0;
  std::atomic<uint64_t> pulled_again_ = 0;
  std::atomic<uint64_t> waits_for_space_ = 0;

  // Destroyed from the last to the first: threads end before what they use.
  Channel channel_;
  std::mutex control_mutex_;  // held by run_control()
  Port tcp_port_{*this, wire::Transport::kTcp};
  Port verbs_port_{*this, wire::Transport::kVerbs};
  std::unique_ptr<TcpPuller> tcp_puller_;
  std::unique_ptr<VerbsPuller> verbs_puller_;  // after an offer; set with mutex_
};

}  // namespace ppmr
