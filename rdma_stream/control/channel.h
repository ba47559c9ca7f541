// The control channel between a source and a target. Messages arrive exactly once and in order,
// even if connections are lost.
//
// Each message has a sequence number and stays in the outbox until the peer has acknowledged it.
// After a reconnection each side reports the last sequence number that it received, and the other
// side retransmits all later messages. Code above the channel does not notice reconnections. A
// frame with a wrong CRC or sequence number ends the connection, not the session: the peer
// retransmits the frame over the next connection.
#pragma once

#include <atomic>
#include <cassert>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/session_timings.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

struct ChannelOptions {
  size_t outbox_capacity_bytes = size_t{4} << 20;
  // The channel uses `heartbeat_interval` and `connection_silence_max`.
  SessionTimings timings = SessionTimings::from_peer_timeout(std::chrono::milliseconds(10'000));
};

// A thread of the channel writes to the connection. Each write sends all bytes that were appended
// since the last write. (Rejected: each caller of send() writes. This made a pipeline over RDMA
// between virtual machines a sixth slower.)
//
// Threads: any; run() by one thread at a time. The handler runs on the thread of run() and must not
// wait for the peer.
class Channel {
 public:
  // An error or an exception of the handler makes the channel fail.
  using Handler = std::function<Status(wire::MessageType, std::span<const std::byte> body)>;

  // Throws std::system_error when the thread cannot be started.
  Channel(ChannelOptions options, Handler handler);
  ~Channel();

  // Appends the message, followed by `bytes`, to the outbox. Blocks while the outbox is full.
  // Errors: the error that made the channel fail.
  template <typename Message>
  Status send(const Message& message, std::span<const std::byte> bytes = {}) {
    return append_message(message, bytes, Sending::kNow);
  }
  // Like send(), but never blocks. Errors: also ENOBUFS when the outbox is full.
  template <typename Message>
  Status post(const Message& message) {
    return append_message(message, {}, Sending::kNowOrNever);
  }
  // Like send(), but the message may wait a moment and be sent together with later messages: a
  // checkpoint of many small files has several messages for each file. After 500 us or 32 KiB the
  // channel sends all of them.
  template <typename Message>
  Status send_soon(const Message& message, std::span<const std::byte> bytes = {}) {
    return append_message(message, bytes, Sending::kSoon);
  }
  // Like send(), but the message may stay in the outbox until the next send(), push() or heartbeat.
  template <typename Message>
  Status send_with_next(const Message& message) {
    return append_message(message, {}, Sending::kWithNext);
  }
  void push();

  // Sends and receives over `connection` until it is lost or the channel fails; returns the reason.
  // `peer_received_sequence` is from the peer's handshake. An impossible number (EPROTO) ends only
  // this connection: it may come from a delayed hello.
  Error run(std::shared_ptr<Connection> connection, uint64_t peer_received_sequence);
  // Makes run() return.
  void disconnect();

  // Final: send() and run() return `error` from now on. Only the first call has an effect.
  void fail(Error error);
  std::optional<Error> failed() const;

  // Blocks until all messages sent so far are written to a connection, but at most for `timeout`.
  void flush(std::chrono::milliseconds timeout);

  uint64_t received_sequence() const { return received_sequence_.load(); }
  bool connected() const;
  // Returns the last time at which the peer was known to be alive: a frame arrived, note_received()
  // was called, or a connection began. A connection that ends without a single frame does not
  // count, because an exchange of hellos alone proves too little. The time in which the handler
  // works does not count as silence, because the channel does not read arriving frames during that
  // time.
  std::chrono::steady_clock::time_point last_received() const;
  // Called when the peer has sent payload, or a request for payload, over another connection of the
  // session.
  void note_received();
  std::string peer() const;  // the peer's address on the current or last connection

 private:
  enum class Sending : uint8_t { kNow, kSoon, kWithNext, kNowOrNever };

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
  bool fits_locked(size_t length) const PPMR_REQUIRES(mutex_);
  void put_locked(uint64_t position, std::span<const std::byte> bytes) PPMR_REQUIRES(mutex_);
  wire::FrameHeader frame_at_locked(uint64_t position) const PPMR_REQUIRES(mutex_);
  void check_positions_locked() const PPMR_REQUIRES(mutex_);
  Status acknowledge_locked(uint64_t sequence) PPMR_REQUIRES(mutex_);
  Status rewind_locked(uint64_t peer_received_sequence) PPMR_REQUIRES(mutex_);
  Error receive_frames(Connection& connection);
  Status receive_more(Connection& connection);
  Result<bool> take_frame(const Connection& connection, wire::FrameHeader& header,
                          std::span<const std::byte>& body);
  Status call_handler(wire::MessageType type, std::span<const std::byte> body);
  void run_writer();
  void write_frames() PPMR_REQUIRES(mutex_);
  void write_outbox() PPMR_REQUIRES(mutex_);
  void write_heartbeat() PPMR_REQUIRES(mutex_);
  void write(std::span<iovec> buffers, uint64_t end_position) PPMR_REQUIRES(mutex_);

  const ChannelOptions options_;
  const Handler handler_;
  // Memory of the outbox and the inbox. Not zeroed, so that a short session touches little of it.
  const std::unique_ptr<std::byte[]> buffers_;

  mutable Mutex mutex_;
  CondVar writer_wanted_;  // wakes the writer thread
  CondVar progressed_;     // there is room in the outbox, or a write has ended
  // The outbox is a ring. A position counts bytes from the channel's start; modulo the size of the
  // ring it is an index. acknowledged <= sent <= appended, but the peer may acknowledge bytes while
  // they are being written (check_positions_locked()). The span is constant. mutex_ guards its
  // bytes, except those from `sent` to `writing` while `writing_`: they belong to the writer
  // thread, which sends them without the lock.
  const std::span<std::byte> outbox_;
  uint64_t acknowledged_position_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t sent_position_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t writing_position_ PPMR_GUARDED_BY(mutex_) = 0;  // end of the current write
  uint64_t appended_position_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_sequence_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t appended_sequence_ PPMR_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Connection> connection_ PPMR_GUARDED_BY(mutex_);  // null after a failed write
  // The connection of run(); stays set after a failed write.
  std::shared_ptr<Connection> reading_ PPMR_GUARDED_BY(mutex_);
  std::thread::id reader_ PPMR_GUARDED_BY(mutex_);  // the thread of run()
  std::string peer_ PPMR_GUARDED_BY(mutex_);
  bool writing_ PPMR_GUARDED_BY(mutex_) = false;
  bool acknowledgement_due_ PPMR_GUARDED_BY(mutex_) = false;
  // Send the outbox without waiting for more messages.
  bool urgent_ PPMR_GUARDED_BY(mutex_) = false;
  // The time until which the outbox may wait; nullopt: no message may wait.
  std::optional<std::chrono::steady_clock::time_point> gathers_until_ PPMR_GUARDED_BY(mutex_);
  bool stopping_ PPMR_GUARDED_BY(mutex_) = false;
  std::optional<Error> failed_ PPMR_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point last_written_ PPMR_GUARDED_BY(mutex_);

  std::atomic<uint64_t> received_sequence_ = 0;
  std::atomic<std::chrono::steady_clock::rep> last_received_;
  std::atomic<bool> handling_ = false;  // the handler runs and is not waiting for outbox room
  std::atomic<std::chrono::steady_clock::rep> frame_began_ = 0;  // 0: no incomplete frame

  // Only run() uses it: received bytes. The bytes in [begin, end) are not handled yet.
  const std::span<std::byte> inbox_;
  size_t inbox_begin_ = 0;
  size_t inbox_end_ = 0;

  std::thread writer_;  // declared last: the thread ends before the members that it uses
};

}  // namespace ppmr
