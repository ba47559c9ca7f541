// The control channel between a source and a target: messages arrive exactly once and in order,
// also across lost connections.
//
// Every message has a sequence number and stays in the outbox until the peer has acknowledged it.
// After a reconnection each side tells the last sequence it received, and the other sends again
// what came after. So nothing above the channel knows about reconnections. A frame with a wrong
// CRC or sequence ends the connection (not the session): what was lost is then sent again.
#pragma once

#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/session_timings.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

struct ChannelOptions {
  size_t outbox_capacity_bytes = size_t{4} << 20;
  // The channel uses `heartbeat_interval` and `connection_silence_max`.
  SessionTimings timings = SessionTimings::from_peer_timeout(std::chrono::milliseconds(10'000));
};

// A thread of its own writes: what was appended since its last write goes out at once. (Where the
// senders wrote themselves, the pipeline over RDMA between emulated machines lost a sixth.)
//
// Threads: send(), fail() and the observers by any; run() by one thread at a time. The handler is
// called on the thread of run() and must not wait for the peer.
class Channel {
 public:
  // An error of the handler is the peer's breach of the protocol: the channel fails.
  using Handler = std::function<Status(wire::MessageType, std::span<const std::byte> body)>;

  Channel(ChannelOptions options, Handler handler);
  ~Channel();

  // Appends the message, and `bytes` behind it, to the outbox; waits while that is full. Errors:
  // the one the channel failed with.
  template <typename Message>
  Status send(const Message& message, std::span<const std::byte> bytes = {}) {
    return append_message(message, bytes, Sending::kNow);
  }
  // The same for callers that must not wait. Errors: also ENOBUFS, when the outbox is full.
  template <typename Message>
  Status post(const Message& message) {
    return append_message(message, {}, Sending::kNowOrNever);
  }
  // As send(), for a message that need not go out before another one does, or push() is called; the
  // next heartbeat takes it along at the latest.
  template <typename Message>
  Status send_with_next(const Message& message) {
    return append_message(message, {}, Sending::kWithNext);
  }
  void push() { writer_wanted_.notify_one(); }

  // Sends and receives over `connection` until it is lost or the channel fails, and says why.
  // `peer_received_sequence` is what the peer said in its handshake. A number that cannot be true
  // (EPROTO) ends this connection only: it may come from a hello that was overtaken by a later one.
  Error run(std::shared_ptr<Connection> connection, uint64_t peer_received_sequence);
  // Makes run() return.
  void disconnect();

  // Final: senders and run() end with `error`. Only the first call counts.
  void fail(Error error);
  std::optional<Error> failed() const;

  // Waits until everything sent so far is written to a connection, at most `timeout`.
  void flush(std::chrono::milliseconds timeout);

  uint64_t received_sequence() const { return received_sequence_.load(); }
  bool connected() const;
  // When the last frame came, or the present connection. One over which no frame ever came does not
  // count afterwards: a peer that only ever greets is not alive.
  std::chrono::steady_clock::time_point last_heard() const;
  std::string peer() const;  // of the present or last connection

 private:
  enum class Sending : uint8_t { kNow, kWithNext, kNowOrNever };

  template <typename Message>
  Status append_message(const Message& message, std::span<const std::byte> bytes, Sending sending) {
    std::array<std::byte, 8 << 10> fields;
    wire::Writer writer(fields);
    writer(message);
    assert(!writer.overrun());
    return append(Message::kType, std::span(fields).first(writer.written_bytes()), bytes, sending);
  }
  Status append(wire::MessageType type, std::span<const std::byte> fields,
                std::span<const std::byte> bytes, Sending sending);
  void put(uint64_t position, std::span<const std::byte> bytes);
  wire::FrameHeader frame_at(uint64_t position) const;
  Status acknowledge_locked(uint64_t sequence);
  Status rewind_locked(uint64_t peer_received_sequence);
  Error receive_frames(Connection& connection);
  Status receive_more(Connection& connection);
  Result<bool> take_frame(const Connection& connection, wire::FrameHeader& header,
                          std::span<const std::byte>& body);
  void write_frames();
  void write_outbox(std::unique_lock<std::mutex>& lock);
  void write_heartbeat(std::unique_lock<std::mutex>& lock);
  void write(std::unique_lock<std::mutex>& lock, std::span<iovec> buffers, uint64_t end_position);

  const ChannelOptions options_;
  const Handler handler_;

  mutable std::mutex mutex_;
  std::condition_variable writer_wanted_;  // for the writer thread
  std::condition_variable progressed_;     // for those who wait for room, or for what was sent
  // Guarded by mutex_. The outbox is a ring; positions only grow, modulo its size they index it.
  // acknowledged <= sent <= appended. The bytes from `sent` on belong to the writer thread while
  // `writing_`, so no lock is held while it sends them.
  std::vector<std::byte> outbox_;
  uint64_t acknowledged_position_ = 0;
  uint64_t sent_position_ = 0;
  uint64_t writing_position_ = 0;  // end of what is being sent
  uint64_t appended_position_ = 0;
  uint64_t acknowledged_sequence_ = 0;
  uint64_t appended_sequence_ = 0;
  std::shared_ptr<Connection> connection_;  // none once a write to it has failed
  std::shared_ptr<Connection> reading_;     // the same, until run() has come to its end
  std::thread::id reader_;                  // the thread of run()
  std::string peer_;
  bool writing_ = false;
  bool acknowledgement_due_ = false;
  bool stopping_ = false;
  std::optional<Error> failed_;
  std::chrono::steady_clock::time_point last_written_;

  std::atomic<uint64_t> received_sequence_ = 0;
  std::atomic<std::chrono::steady_clock::rep> last_heard_;
  std::atomic<std::chrono::steady_clock::rep> frame_began_ = 0;  // 0: none has come in part

  // Used by run() only: what was received, and which of it is not handled yet.
  std::vector<std::byte> inbox_;
  size_t inbox_begin_ = 0;
  size_t inbox_end_ = 0;

  std::thread writer_;  // last: ends before what it uses
};

}  // namespace ppmr
