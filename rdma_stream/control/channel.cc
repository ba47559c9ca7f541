#include "rdma_stream/control/channel.h"

#include <algorithm>
#include <cassert>
#include <exception>

#include "base/crc32c.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

// After this many frames or bytes the channel acknowledges at once, so that the peer's outbox does
// not fill up with messages that arrived long ago.
constexpr uint64_t kAcknowledgeEveryFrames = 64;
constexpr uint64_t kAcknowledgeEveryBytes = 256 << 10;

// The time for which messages gather. It is too short for a user to notice, but a program that
// writes small files one after the other causes ten messages in this time.
constexpr std::chrono::microseconds kGatherTime{500};
constexpr uint64_t kGatherBytes = 32 << 10;

// Enough room for the longest frame, and for several short frames behind a partly received frame.
constexpr size_t kInboxBytes = wire::kFrameHeaderBytes + wire::kFrameBodyMaxBytes + (64 << 10);

using HeaderBytes = std::array<std::byte, wire::kFrameHeaderBytes>;

HeaderBytes encode_header(const wire::FrameHeader& header) {
  HeaderBytes bytes;
  wire::Writer writer(bytes);
  writer(header);
  assert(writer.written_bytes() == bytes.size());
  return bytes;
}

Clock::rep now() { return Clock::now().time_since_epoch().count(); }

bool closed_by_peer(const Error& error) {
  return error.errno_value == EPIPE || error.errno_value == ECONNRESET;
}

}  // namespace

Channel::Channel(ChannelOptions options, Handler handler)
    : options_(options),
      handler_(std::move(handler)),
      buffers_(
          std::make_unique_for_overwrite<std::byte[]>(options.outbox_capacity_bytes + kInboxBytes)),
      outbox_(buffers_.get(), options.outbox_capacity_bytes),
      last_received_(now()),
      inbox_(outbox_.data() + outbox_.size(), kInboxBytes),
      writer_([this] { run_writer(); }) {}

Channel::~Channel() {
  fail(Error{ECANCELED, "the session was closed"});
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  writer_wanted_.notify_one();
  writer_.join();
}

// ---- The outbox --------------------------------------------------------------------------------

void Channel::check_positions_locked() const {
  assert(acknowledged_position_ <= (writing_ ? writing_position_ : sent_position_) &&
         "the peer acknowledged bytes that were not sent");
  assert((writing_ ? writing_position_ : sent_position_) <= appended_position_ &&
         "the channel sent bytes that no message has");
  assert(appended_position_ - acknowledged_position_ <= outbox_.size() &&
         "the outbox overwrote messages that were not acknowledged");
  assert((acknowledged_sequence_ == appended_sequence_) ==
             (acknowledged_position_ == appended_position_) &&
         "sequence numbers and bytes of the outbox differ");
}

bool Channel::fits_locked(size_t length) const {
  return appended_position_ + length - acknowledged_position_ <= outbox_.size();
}

void Channel::put_locked(uint64_t position, std::span<const std::byte> bytes) {
  const size_t start = position % outbox_.size();
  const size_t first = std::min(bytes.size(), outbox_.size() - start);
  std::copy_n(bytes.data(), first, outbox_.data() + start);
  std::copy_n(bytes.data() + first, bytes.size() - first, outbox_.data());
}

wire::FrameHeader Channel::frame_at_locked(uint64_t position) const {
  HeaderBytes bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = outbox_[(position + i) % outbox_.size()];
  return *wire::decode<wire::FrameHeader>(bytes);
}

Status Channel::append(wire::MessageType type, std::span<const std::byte> fields,
                       std::span<const std::byte> bytes, Sending sending) {
  const size_t length = wire::kFrameHeaderBytes + fields.size() + bytes.size();
  assert(fields.size() + bytes.size() <= wire::kFrameBodyMaxBytes);
  assert(length <= outbox_.size());
  MutexLock lock(mutex_);
  if (sending != Sending::kNowOrNever && !failed_ && !fits_locked(length)) {
    // Send the whole outbox: messages free their room when the peer has acknowledged them.
    urgent_ = true;
    writer_wanted_.notify_one();
    // If the handler waits for room in the outbox, it waits for the peer, so this time counts as
    // the peer's silence.
    const bool in_handler = handling_ && std::this_thread::get_id() == reader_;
    if (in_handler) handling_ = false;
    progressed_.wait(mutex_,
                     [&]() PPMR_REQUIRES(mutex_) { return failed_ || fits_locked(length); });
    if (in_handler) handling_ = true;
  }
  if (failed_) return failure(*failed_);
  if (!fits_locked(length))
    return failure(ENOBUFS, peer_ + " does not acknowledge messages: the outbox is full");
  wire::FrameHeader header;
  header.body_length = static_cast<uint32_t>(fields.size() + bytes.size());
  header.type = type;
  header.sequence = ++appended_sequence_;
  header.acknowledged = received_sequence_.load();
  header.body_crc = crc32c(bytes, crc32c(fields));
  header.crc = wire::fields_crc(header);
  put_locked(appended_position_, encode_header(header));
  put_locked(appended_position_ + wire::kFrameHeaderBytes, fields);
  put_locked(appended_position_ + wire::kFrameHeaderBytes + fields.size(), bytes);
  appended_position_ += length;
  check_positions_locked();
  const bool begins = sending == Sending::kSoon && !gathers_until_;
  if (begins) gathers_until_ = Clock::now() + kGatherTime;
  const bool is_urgent =
      sending == Sending::kNow || sending == Sending::kNowOrNever ||
      (sending == Sending::kSoon && appended_position_ - sent_position_ >= kGatherBytes);
  if (is_urgent) urgent_ = true;
  lock.unlock();
  if (is_urgent || begins) writer_wanted_.notify_one();
  return {};
}

// Removes acknowledged messages from the outbox. Errors: EPROTO for a message that was not sent.
Status Channel::acknowledge_locked(uint64_t sequence) {
  bool freed = false;
  const uint64_t sent = writing_ ? writing_position_ : sent_position_;
  while (acknowledged_sequence_ < sequence) {
    if (acknowledged_position_ >= sent) {
      return failure(EPROTO, peer_ + " acknowledges a message that was not sent");
    }
    const wire::FrameHeader frame = frame_at_locked(acknowledged_position_);
    assert(frame.sequence == acknowledged_sequence_ + 1 &&
           "the outbox has another message at this position");
    acknowledged_position_ += wire::kFrameHeaderBytes + frame.body_length;
    ++acknowledged_sequence_;
    freed = true;
  }
  check_positions_locked();
  if (freed) progressed_.notify_all();
  return {};
}

// Prepares a new connection: the writer sends everything after `peer_received_sequence`.
Status Channel::rewind_locked(uint64_t peer_received_sequence) {
  assert(!writing_ && "a write of an earlier connection is in progress");
  // With this position the peer can acknowledge any message in the outbox.
  sent_position_ = appended_position_;
  if (auto status = acknowledge_locked(peer_received_sequence); !status) return status;
  if (peer_received_sequence < acknowledged_sequence_) {
    return failure(EPROTO, peer_ + " lost messages that it had acknowledged");
  }
  sent_position_ = acknowledged_position_;
  return {};
}

// ---- The writer thread -------------------------------------------------------------------------

void Channel::push() {
  {
    MutexLock lock(mutex_);
    urgent_ = true;
  }
  writer_wanted_.notify_one();
}

void Channel::run_writer() {
  try {
    MutexLock lock(mutex_);
    while (!stopping_) write_frames();
  } catch (const std::exception& exception) {
    fail(Error{EIO, std::string("cannot write to the peer: ") + exception.what()});
  }
}

void Channel::write_frames() {
  const auto heartbeat_at = last_written_ + options_.timings.heartbeat_interval;
  const bool gathers = sent_position_ < appended_position_ && gathers_until_ && !urgent_ &&
                       !acknowledgement_due_ && Clock::now() < *gathers_until_;
  if (connection_ == nullptr) {
    writer_wanted_.wait(mutex_);
  } else if (gathers) {
    writer_wanted_.wait_until(mutex_, *gathers_until_);
  } else if (sent_position_ < appended_position_) {
    write_outbox();
  } else if (acknowledgement_due_ || Clock::now() >= heartbeat_at) {
    write_heartbeat();
  } else {
    writer_wanted_.wait_until(mutex_, heartbeat_at);
  }
  // Bytes that arrive slowly and never complete a frame do not keep a connection alive.
  const Clock::time_point frame_began{Clock::duration(frame_began_.load())};
  if (reading_ && frame_began != Clock::time_point{} &&
      Clock::now() - frame_began > options_.timings.connection_silence_max) {
    reading_->shut_down();
  }
}

void Channel::write_outbox() {
  urgent_ = false;
  gathers_until_.reset();
  const uint64_t begin = sent_position_;
  const uint64_t length = appended_position_ - begin;
  assert(length > 0 && length <= outbox_.size() && "the outbox has nothing to send");
  const size_t start = begin % outbox_.size();
  const size_t first = std::min<size_t>(length, outbox_.size() - start);
  std::array<iovec, 2> buffers = {iovec{outbox_.data() + start, first},
                                  iovec{outbox_.data(), length - first}};
  write(std::span(buffers).first(length > first ? 2 : 1), begin + length);
}

void Channel::write_heartbeat() {
  wire::FrameHeader header;
  header.sequence = appended_sequence_;  // write_frames() has checked that all messages are sent
  header.acknowledged = received_sequence_.load();
  header.body_crc = crc32c({});
  header.crc = wire::fields_crc(header);
  HeaderBytes bytes = encode_header(header);
  iovec buffer{bytes.data(), bytes.size()};
  write({&buffer, 1}, sent_position_);
}

// Writes `buffers` without the lock. Afterwards all bytes before `end_position` count as sent, even
// after an error.
void Channel::write(std::span<iovec> buffers, uint64_t end_position) {
  const auto connection = connection_;
  assert(connection != nullptr && !writing_ && "two writes at a time");
  writing_ = true;
  writing_position_ = end_position;
  check_positions_locked();
  acknowledgement_due_ = false;
  mutex_.unlock();
  Status written;
  try {
    written = connection->write(buffers);
  } catch (const std::exception& exception) {
    written = failure(EIO, exception.what());
  }
  // A peer that closed the connection may have sent messages before, such as its goodbye. run()
  // reads them up to the end of the stream. After other errors, make run() return at once.
  if (!written && !closed_by_peer(written.error())) connection->shut_down();
  mutex_.lock();
  writing_ = false;
  last_written_ = Clock::now();
  sent_position_ = end_position;
  check_positions_locked();
  if (!written && connection_ == connection) connection_ = nullptr;
  progressed_.notify_all();
}

// ---- Receiving ---------------------------------------------------------------------------------

Error Channel::run(std::shared_ptr<Connection> connection, uint64_t peer_received_sequence) {
  {
    MutexLock lock(mutex_);
    if (failed_) return *failed_;
    peer_ = connection->peer();
    if (auto rewound = rewind_locked(peer_received_sequence); !rewound) return rewound.error();
    connection_ = reading_ = connection;
    reader_ = std::this_thread::get_id();
    last_written_ = Clock::now();
  }
  const Clock::rep received_before = last_received_;
  Clock::rep connected_at = now();
  last_received_ = connected_at;
  writer_wanted_.notify_one();
  connection->set_read_timeout(options_.timings.connection_silence_max);
  connection->set_write_timeout(options_.timings.connection_silence_max);
  Error reason = receive_frames(*connection);
  frame_began_ = 0;
  last_received_.compare_exchange_strong(connected_at, received_before);
  connection->shut_down();
  MutexLock lock(mutex_);
  connection_ = reading_ = nullptr;
  progressed_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) { return !writing_; });
  return failed_.value_or(reason);
}

Error Channel::receive_frames(Connection& connection) {
  inbox_begin_ = inbox_end_ = 0;
  uint64_t frames_since_acknowledgement = 0;
  uint64_t bytes_since_acknowledgement = 0;
  for (;;) {
    wire::FrameHeader header;
    std::span<const std::byte> body;
    const auto taken = take_frame(connection, header, body);
    if (!taken) return taken.error();
    if (!*taken) {
      if (auto received = receive_more(connection); !received) return received.error();
      continue;
    }
    last_received_ = now();
    {
      MutexLock lock(mutex_);
      if (failed_) return *failed_;
      if (auto status = acknowledge_locked(header.acknowledged); !status) return status.error();
    }
    const bool heartbeat = header.type == wire::MessageType::kHeartbeat;
    if (header.sequence != received_sequence_.load() + (heartbeat ? 0 : 1)) {
      return Error{EPROTO, "frame from " + connection.peer() + ": out of sequence"};
    }
    if (heartbeat) continue;
    received_sequence_ = header.sequence;
    if (auto handled = call_handler(header.type, body); !handled) {
      fail(handled.error());
      return handled.error();
    }
    bytes_since_acknowledgement += body.size();
    if (++frames_since_acknowledgement >= kAcknowledgeEveryFrames ||
        bytes_since_acknowledgement >= kAcknowledgeEveryBytes) {
      frames_since_acknowledgement = bytes_since_acknowledgement = 0;
      MutexLock lock(mutex_);
      acknowledgement_due_ = true;
      writer_wanted_.notify_one();
    }
  }
}

Status Channel::call_handler(wire::MessageType type, std::span<const std::byte> body) {
  handling_ = true;
  Status handled;
  try {
    handled = handler_(type, body);
  } catch (const std::exception& exception) {
    handled = failure(EIO, "cannot handle message " + std::to_string(static_cast<int>(type)) +
                               ": " + exception.what());
  }
  // The time of the handler does not count as silence of the peer: frames that arrived during this
  // time are read next.
  last_received_ = now();
  handling_ = false;
  return handled;
}

// Blocks until at least one byte arrives; receives several frames with one call.
Status Channel::receive_more(Connection& connection) {
  const auto rest = inbox_.subspan(inbox_begin_, inbox_end_ - inbox_begin_);
  std::copy(rest.begin(), rest.end(), inbox_.begin());
  inbox_begin_ = 0;
  inbox_end_ = rest.size();
  if (rest.empty()) {
    frame_began_ = 0;
  } else if (frame_began_ == 0) {
    frame_began_ = now();
  }
  const auto received = connection.read_some(inbox_.subspan(inbox_end_));
  if (!received) return failure(received.error());
  inbox_end_ += *received;
  return {};
}

// Takes the next frame from the inbox. Returns false if the frame is incomplete. `body` stays valid
// until receive_more().
Result<bool> Channel::take_frame(const Connection& connection, wire::FrameHeader& header,
                                 std::span<const std::byte>& body) {
  const std::span<const std::byte> received(inbox_.data() + inbox_begin_,
                                            inbox_end_ - inbox_begin_);
  if (received.size() < wire::kFrameHeaderBytes) return false;
  header = *wire::decode<wire::FrameHeader>(received.first(wire::kFrameHeaderBytes));
  if (wire::fields_crc(header) != header.crc) {
    return failure(EPROTO, "frame header from " + connection.peer() + ": checksum mismatch");
  }
  if (header.body_length > wire::kFrameBodyMaxBytes) {
    return failure(EPROTO, "frame of " + std::to_string(header.body_length) + " bytes from " +
                               connection.peer() + ": longer than " +
                               std::to_string(wire::kFrameBodyMaxBytes));
  }
  if (received.size() < wire::kFrameHeaderBytes + header.body_length) return false;
  body = received.subspan(wire::kFrameHeaderBytes, header.body_length);
  if (crc32c(body) != header.body_crc) {
    return failure(EPROTO, "frame from " + connection.peer() + ": checksum mismatch");
  }
  inbox_begin_ += wire::kFrameHeaderBytes + body.size();
  frame_began_ = 0;
  return true;
}

// ---- State -------------------------------------------------------------------------------------

void Channel::disconnect() {
  MutexLock lock(mutex_);
  if (reading_) reading_->shut_down();
}

void Channel::fail(Error error) {
  MutexLock lock(mutex_);
  if (!failed_) failed_ = std::move(error);
  if (reading_) reading_->shut_down();
  progressed_.notify_all();
}

std::optional<Error> Channel::failed() const {
  MutexLock lock(mutex_);
  return failed_;
}

void Channel::flush(std::chrono::milliseconds timeout) {
  MutexLock lock(mutex_);
  const uint64_t end = appended_position_;
  progressed_.wait_for(mutex_, timeout,
                       [&]() PPMR_REQUIRES(mutex_) { return failed_ || sent_position_ >= end; });
}

bool Channel::connected() const {
  MutexLock lock(mutex_);
  return connection_ != nullptr;
}

std::chrono::steady_clock::time_point Channel::last_received() const {
  if (handling_) return Clock::now();
  return Clock::time_point(Clock::duration(last_received_.load()));
}

void Channel::note_received() { last_received_ = now(); }

std::string Channel::peer() const {
  MutexLock lock(mutex_);
  return peer_;
}

}  // namespace ppmr
