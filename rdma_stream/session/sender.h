// The source's half of a session: announces chunks, lets the target read them, and takes the slots
// back when the target has verified them.
//
// The life of a slot: a FUSE worker cuts a chunk -> announce() records it in the slot table -> the
// target reads it (SlotReader) -> Release arrives -> the lease ends and the slot is free. Only the
// target's Release, or the end of the session, frees a slot.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "rdma_stream/control/channel.h"
#include "rdma_stream/mover/slot_reader.h"
#include "rdma_stream/mover/tcp_responder.h"
#include "rdma_stream/session/compression.h"
#include "rdma_stream/session/outlet.h"
#include "rdma_stream/session/protection.h"
#include "rdma_stream/session/transport.h"

namespace ppmr {

struct SenderOptions {
  uint32_t stream_count = 2;
  std::chrono::milliseconds peer_timeout{10'000};
  std::string source_name;
  // The transports that the source offers to the target, which chooses. Empty: the source makes no
  // offer, and payload travels over TCP.
  std::optional<SourceTransport> transport;
  // --trusted-fabric: chunks need no encryption. The session still encrypts unless the target also
  // has the option.
  bool trusted_fabric = false;
  CompressionMethod compression;
};

// Requests of the target. The functions run on the control thread and must not wait for the target.
struct SenderEvents {
  std::function<void(uint64_t checkpoint)> seal_requested;
  std::function<void(uint64_t checkpoint)> checkpoint_removed;
  std::function<void(uint64_t node, uint64_t offset, uint64_t length)> bytes_wanted;
};

// Threads: any.
class Sender final : public Outlet, private SlotReader {
 public:
  // Opens a session and waits for the target's choice of transport. Errors: those of
  // Connector::connect and of the handshake; EINVAL when the pool has more slots than a session may
  // have; EIO when the two sides have no transport in common; EACCES when the target does not
  // encrypt; EAGAIN when the system has no thread or memory left.
  static Result<std::unique_ptr<Sender>> open(SenderOptions options, BufferPool& pool,
                                              Connector& connector, SenderEvents events);
  // Ends the session: checkpoints that are not sealed fail at the target. After this all slots are
  // free.
  ~Sender() override;

  void announce(Chunk chunk) override;
  Status send(const OneWayMessage& message) override;
  void push() override;
  Status claim(wire::Claim message) override;
  Status rename(wire::Rename message) override;
  Status seal(wire::Seal message) override;
  Result<size_t> read_back(uint64_t node, uint64_t offset, std::span<std::byte> bytes,
                           const Interrupted& interrupted) override;
  Status await_applied(uint64_t node, const Interrupted& interrupted) override;
  void set_patience(std::chrono::milliseconds patience) override;
  void fail(Error error) override { channel_.fail(std::move(error)); }
  wire::Space space() const override;
  Status status() const override;
  OutletCounters counters() const override;

 private:
  // A chunk from its announcement to its release.
  struct SlotEntry {
    Chunk chunk;
    wire::ChunkCheck check;
    bool announced = false;
    uint32_t readers = 0;      // number of begin_read() calls without end_read()
    bool release_due = false;  // released during a read: the last end_read() completes it
    int errno_value = 0;       // the result in the Release
  };
  struct Reply {
    Status status;
    std::vector<std::byte> bytes;
  };
  struct ReleasePermit {
    void operator()(std::counting_semaphore<>* permits) const { permits->release(); }
  };
  using ReadBackPermit = std::unique_ptr<std::counting_semaphore<>, ReleasePermit>;
  // A request stays in requests_ until its answer arrives, even if its caller was interrupted.
  struct Request {
    std::promise<Reply> reply;
    ReadBackPermit permit;
  };
  using Greeting = std::pair<std::shared_ptr<Connection>, wire::Welcome>;

  Sender(SenderOptions options, BufferPool& pool, Connector& connector, SenderEvents events,
         wire::Token session);
  static Result<std::unique_ptr<Sender>> open_unguarded(SenderOptions options, BufferPool& pool,
                                                        Connector& connector, SenderEvents events);

  Result<std::span<const std::byte>> begin_read(const wire::ReadRequest& request) override;
  void end_read(uint32_t slot) override;

  void run_control(Greeting greeting);
  Error stay_connected(Greeting greeting);
  Result<Greeting> connect(std::chrono::milliseconds timeout);
  Status handle(wire::MessageType type, std::span<const std::byte> body);
  Status handle_release(const wire::Release& release);
  Result<wire::ChunkCheck> pack(Chunk& chunk);
  void announce_now(Chunk chunk, const wire::ChunkCheck& check);
  void offer_transport();
  Status await_transport();
  Status handle_transport_choice(const wire::TransportChoice& choice);
  void complete(SlotEntry entry);
  void end_session(Error error);
  // Returns the error that ended the session, with errno EIO. Writers get this error.
  Error session_error() const;
  std::chrono::milliseconds silence_max() const {
    return std::max(timings_.peer_timeout, patience_.load());
  }

  template <typename Message>
  Status request(Message message);
  template <typename Message>
  Result<std::vector<std::byte>> request_bytes(Message message, const Interrupted& interrupted,
                                               ReadBackPermit permit);
  Result<ReadBackPermit> await_read_back_permit(const Interrupted& interrupted);
  void answer(uint64_t request, Reply reply);

  const SenderOptions options_;
  const SessionTimings timings_;
  // How long this side waits for a silent target.
  std::atomic<std::chrono::milliseconds> patience_{};
  BufferPool& pool_;
  Connector& connector_;
  const SenderEvents events_;
  const wire::Token session_;
  wire::Token token_{};  // assigned by the target; constant after open()
  std::string target_name_;
  PeerIdentity target_identity_;
  std::shared_ptr<ChunkProtection> protection_;  // constant after open()

  Compressor compressor_;

  mutable Mutex slots_mutex_;
  std::vector<SlotEntry> slots_ PPMR_GUARDED_BY(slots_mutex_);       // by slot
  std::optional<Error> slots_closed_ PPMR_GUARDED_BY(slots_mutex_);  // if set, announce() fails

  // Limits the number of simultaneous read-backs. More read-backs could fill the target's outbox
  // with replies. The target's control thread would then block, and send no releases, which the
  // source needs.
  std::counting_semaphore<> read_backs_left_{8};
  Mutex requests_mutex_;
  uint64_t last_request_ PPMR_GUARDED_BY(requests_mutex_) = 0;
  std::map<uint64_t, Request> requests_ PPMR_GUARDED_BY(requests_mutex_);
  bool requests_closed_ PPMR_GUARDED_BY(requests_mutex_) = false;

  mutable Mutex space_mutex_;
  wire::Space space_ PPMR_GUARDED_BY(space_mutex_);

  mutable Mutex transport_mutex_;
  CondVar transport_chosen_;
  std::optional<wire::TransportChoice> transport_ PPMR_GUARDED_BY(transport_mutex_);

  std::atomic<uint64_t> announced_bytes_ = 0;
  std::atomic<uint64_t> verified_bytes_ = 0;
  std::atomic<uint64_t> verified_wire_bytes_ = 0;
  std::atomic<uint64_t> chunks_ = 0;
  std::atomic<uint64_t> inline_chunks_ = 0;
  std::atomic<uint64_t> reconnections_ = 0;

  Mutex stop_mutex_;
  CondVar stop_requested_;
  bool stopping_ PPMR_GUARDED_BY(stop_mutex_) = false;
  std::shared_ptr<Connection> connecting_ PPMR_GUARDED_BY(stop_mutex_);  // set during a handshake

  // Destroyed from the last member to the first: threads end before the members that they use.
  Channel channel_;
  // Held for its destructor: while it exists, the target may read the pool without this side.
  std::shared_ptr<const void> loan_;
  std::unique_ptr<TcpResponder> responder_;  // null if bytes may not travel over TCP
  std::thread control_;
};

}  // namespace ppmr
