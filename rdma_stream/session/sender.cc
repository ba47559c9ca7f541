#include "rdma_stream/session/sender.h"

#include <cassert>
#include <exception>

#include "rdma_stream/connection/handshake.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Returns an errno of the target in a form that is safe for FUSE callers: EIO if it is out of
// range.
int errno_from_wire(int32_t value) {
  constexpr int kErrnoMax = 4095;  // MAX_ERRNO, include/linux/err.h
  return value > 0 && value <= kErrnoMax ? value : EIO;
}

}  // namespace

// ---- Opening and closing -----------------------------------------------------------------------

Result<std::unique_ptr<Sender>> Sender::open(SenderOptions options, BufferPool& pool,
                                             Connector& connector, SenderEvents events) {
  try {
    return open_unguarded(std::move(options), pool, connector, std::move(events));
  } catch (const std::exception& exception) {  // no thread, no memory
    return failure(EAGAIN,
                   "cannot open a session with " + connector.target() + ": " + exception.what());
  }
}

Result<std::unique_ptr<Sender>> Sender::open_unguarded(SenderOptions options, BufferPool& pool,
                                                       Connector& connector, SenderEvents events) {
  if (pool.slot_count() > wire::kSlotsMax) {
    return failure(EINVAL, "the pool has " + std::to_string(pool.slot_count()) +
                               " chunks, but the maximum is " + std::to_string(wire::kSlotsMax) +
                               ": raise --chunk-size or lower --pool-size");
  }
  options.source_name.resize(std::min<size_t>(options.source_name.size(), wire::kNameMaxBytes));
  std::unique_ptr<Sender> sender(
      new Sender(std::move(options), pool, connector, std::move(events), random_token()));
  auto greeting = sender->connect(sender->timings_.peer_timeout);
  if (!greeting) return failure(greeting.error());
  sender->token_ = greeting->second.token;
  sender->target_name_ = greeting->second.target_name;
  sender->target_identity_ = greeting->first->peer_identity();
  // A shared key does not name its target, but the welcome does.
  if (sender->target_identity_.name.empty()) {
    sender->target_identity_.name = sender->target_name_;
  }
  auto protection =
      ChunkProtection::create(*greeting->first, sender->session_, sender->token_,
                              greeting->second.protection, sender->options_.trusted_fabric);
  if (!protection) return failure(protection.error());
  sender->protection_ = std::move(*protection);
  spdlog::info("target {}: encryption of the data: {}, because {}", connector.target(),
               to_string(sender->protection_->kind()), sender->protection_->why());
  TcpResponder::Options responder;
  responder.session = sender->session_;
  responder.token = sender->token_;
  responder.stream_count = sender->options_.stream_count;
  responder.timings = sender->timings_;
  const auto& transport = sender->options_.transport;
  if (!transport || may_use_tcp(transport->mode)) {
    sender->responder_ =
        std::make_unique<TcpResponder>(responder, connector, static_cast<SlotReader&>(*sender));
  }
  if (transport) sender->offer_transport();
  sender->control_ = std::thread([self = sender.get(), greeting = std::move(*greeting)]() mutable {
    self->run_control(std::move(greeting));
  });
  if (transport) {
    if (auto chosen = sender->await_transport(); !chosen) return failure(chosen.error());
  }
  return sender;
}

Sender::Sender(SenderOptions options, BufferPool& pool, Connector& connector, SenderEvents events,
               wire::Token session)
    : options_(std::move(options)),
      timings_(SessionTimings::from_peer_timeout(options_.peer_timeout)),
      pool_(pool),
      connector_(connector),
      events_(std::move(events)),
      session_(session),
      compressor_(pool.chunk_size_bytes()),
      slots_(pool.slot_count()),
      channel_({.timings = timings_},
               [this](wire::MessageType type, std::span<const std::byte> body) {
                 return handle(type, body);
               }) {}

Sender::~Sender() {
  if (control_.joinable()) {
    if (channel_.connected() && channel_.post(wire::Goodbye{})) {
      channel_.flush(timings_.goodbye_max);
    }
    {
      MutexLock lock(stop_mutex_);
      stopping_ = true;
      if (connecting_) connecting_->shut_down();
    }
    stop_requested_.notify_all();
    channel_.fail(Error{ECANCELED, "the session with " + connector_.target() + " was closed"});
    control_.join();
  }
  responder_.reset();  // after this no thread reads a slot
  MutexLock lock(slots_mutex_);
  for ([[maybe_unused]] const SlotEntry& entry : slots_) {
    assert(!entry.chunk.lease && entry.readers == 0 && "a chunk outlives its session");
  }
}

Result<Sender::Greeting> Sender::connect(milliseconds timeout) {
  auto connected = connector_.connect(timeout);
  if (!connected) return failure(connected.error());
  const std::shared_ptr<Connection> connection = std::move(*connected);
  {
    MutexLock lock(stop_mutex_);
    if (stopping_) return failure(ECANCELED, "the session was closed");
    connecting_ = connection;
  }
  wire::ControlHello hello;
  hello.session = session_;
  hello.token = token_;
  hello.received_sequence = channel_.received_sequence();
  hello.slot_count = pool_.slot_count();
  hello.chunk_size_bytes = static_cast<uint32_t>(pool_.chunk_size_bytes());
  hello.stream_count = options_.stream_count;
  hello.protection = least_protection(connection->peer_identity(), options_.trusted_fabric);
  hello.source_name = options_.source_name;
  auto welcome = greet_target(*connection, hello, timeout);
  {
    MutexLock lock(stop_mutex_);
    connecting_ = nullptr;
  }
  if (!welcome) return failure(welcome.error());
  if (Status checked = connector_.check_target(*connection, welcome->target_name); !checked) {
    return failure(checked.error());
  }
  if (protection_ && welcome->protection != protection_->kind()) {
    return failure(EPROTO, "the target at " + connector_.target() +
                               " changed the encryption of an existing session");
  }
  return std::pair{connection, std::move(*welcome)};
}

void Sender::run_control(Greeting greeting) {
  Error reason;
  try {
    reason = stay_connected(std::move(greeting));
  } catch (const std::exception& exception) {
    reason = Error{EIO, exception.what()};
  }
  end_session(std::move(reason));
}

// Keeps the session connected until it is closed or has failed; returns the reason.
Error Sender::stay_connected(Greeting greeting) {
  Error reason = channel_.run(greeting.first, greeting.second.received_sequence);
  MutexLock lock(stop_mutex_);
  while (!stopping_) {
    lock.unlock();
    if (auto failed = channel_.failed()) return *failed;
    const auto left = std::chrono::duration_cast<milliseconds>(channel_.last_received() +
                                                               silence_max() - Clock::now());
    if (left <= milliseconds(0)) {
      return {EIO, "target " + connector_.target() + " was silent for " +
                       std::to_string(silence_max().count()) + " ms: " + reason.message};
    }
    auto connected = connect(std::min(left, timings_.attempt_max));
    if (connected) {
      ++reconnections_;
      spdlog::warn("reconnected to {} after: {}", connector_.target(), reason.message);
      reason = channel_.run(connected->first, connected->second.received_sequence);
    } else if (connected.error().errno_value == ESTALE) {
      return {EIO, connected.error().message};
    } else {
      // Also retry after a wrong magic or version: an earlier answer of this target was valid, so
      // the network may have damaged this one.
      reason = connected.error();
    }
    lock.lock();
    stop_requested_.wait_for(stop_mutex_, timings_.retry_interval,
                             [this]() PPMR_REQUIRES(stop_mutex_) { return stopping_; });
  }
  return {EIO, "the session with " + connector_.target() + " was closed"};
}

void Sender::set_patience(milliseconds patience) {
  patience_ = patience;
  (void)channel_.post(wire::Patience{static_cast<uint64_t>(patience.count())});
}

// Fails all chunks in flight and all requests, and frees all slots.
void Sender::end_session(Error error) {
  error.errno_value = EIO;
  channel_.fail(error);
  {
    MutexLock lock(transport_mutex_);  // else await_transport() could miss the notification
  }
  transport_chosen_.notify_all();
  // All remote reads must end before other chunks use the slots.
  loan_.reset();
  if (responder_) responder_->stop();
  std::vector<SlotEntry> unfinished;
  {
    MutexLock lock(slots_mutex_);
    slots_closed_ = error;
    for (SlotEntry& entry : slots_) {
      if (!entry.announced) continue;
      entry.errno_value = EIO;
      if (entry.readers > 0) {
        entry.release_due = true;  // the last end_read() then completes the chunk
      } else {
        unfinished.push_back(std::exchange(entry, {}));
      }
    }
  }
  for (SlotEntry& entry : unfinished) complete(std::move(entry));
  std::map<uint64_t, Request> requests;
  {
    MutexLock lock(requests_mutex_);
    requests_closed_ = true;
    requests.swap(requests_);
  }
  for (auto& [id, request] : requests) request.reply.set_value({failure(error), {}});
}

// ---- Messages from the target ------------------------------------------------------------------

Status Sender::handle(wire::MessageType type, std::span<const std::byte> body) {
  switch (type) {
    case wire::MessageType::kRelease: {
      auto message = wire::decode<wire::Release>(body);
      return message ? handle_release(*message) : failure(message.error());
    }
    case wire::MessageType::kResult: {
      auto message = wire::decode<wire::Outcome>(body);
      if (!message) return failure(message.error());
      Reply reply;
      if (message->errno_value != 0) {
        reply.status = failure(errno_from_wire(message->errno_value), message->text);
      }
      answer(message->request, std::move(reply));
      return {};
    }
    case wire::MessageType::kReadBackReply: {
      std::span<const std::byte> bytes;
      auto message = wire::decode<wire::ReadBackReply>(body, &bytes);
      if (!message) return failure(message.error());
      Reply reply;
      if (message->errno_value != 0) {
        const int errno_value = errno_from_wire(message->errno_value);
        reply.status = failure(errno_value, "read back from " + connector_.target() + ": " +
                                                std::strerror(errno_value));
      }
      reply.bytes.assign(bytes.begin(), bytes.end());
      answer(message->request, std::move(reply));
      return {};
    }
    case wire::MessageType::kSpace: {
      auto message = wire::decode<wire::Space>(body);
      if (!message) return failure(message.error());
      MutexLock lock(space_mutex_);
      space_ = *message;
      return {};
    }
    case wire::MessageType::kTransportChoice: {
      auto message = wire::decode<wire::TransportChoice>(body);
      return message ? handle_transport_choice(*message) : failure(message.error());
    }
    case wire::MessageType::kSealRequest: {
      auto message = wire::decode<wire::SealRequest>(body);
      if (!message) return failure(message.error());
      if (events_.seal_requested) events_.seal_requested(message->checkpoint);
      return {};
    }
    case wire::MessageType::kCheckpointRemoved: {
      auto message = wire::decode<wire::CheckpointRemoved>(body);
      if (!message) return failure(message.error());
      if (events_.checkpoint_removed) events_.checkpoint_removed(message->checkpoint);
      return {};
    }
    case wire::MessageType::kWant: {
      auto message = wire::decode<wire::Want>(body);
      if (!message) return failure(message.error());
      if (events_.bytes_wanted) {
        events_.bytes_wanted(message->node, message->offset, message->length_bytes);
      }
      return {};
    }
    default:
      return failure(EPROTO, "unexpected message of type " +
                                 std::to_string(static_cast<int>(type)) + " from the target");
  }
}

// ---- Requests ----------------------------------------------------------------------------------

template <typename Message>
Result<std::vector<std::byte>> Sender::request_bytes(Message message,
                                                     const Interrupted& interrupted,
                                                     ReadBackPermit permit) {
  std::future<Reply> reply;
  {
    MutexLock lock(requests_mutex_);
    if (requests_closed_) return failure(session_error());
    message.request = ++last_request_;
    Request& request = requests_[message.request];
    request.permit = std::move(permit);
    reply = request.reply.get_future();
  }
  // If send() fails, the session ends, and end_session() ends the request with an error.
  (void)channel_.send(message);
  while (reply.wait_for(kInterruptCheck) != std::future_status::ready) {
    if (interrupted && interrupted()) return failure(interruption());
  }
  Reply answer = reply.get();
  if (!answer.status) return failure(answer.status.error());
  return std::move(answer.bytes);
}

template <typename Message>
Status Sender::request(Message message) {
  auto bytes = request_bytes(std::move(message), {}, {});
  if (!bytes) return failure(bytes.error());
  return {};
}

Status Sender::send(const OneWayMessage& message) {
  const Status sent =
      std::visit([this](const auto& one) { return channel_.send_soon(one); }, message);
  return sent ? sent : failure(session_error());
}

void Sender::push() { channel_.push(); }

Status Sender::claim(wire::Claim message) { return request(std::move(message)); }
Status Sender::rename(wire::Rename message) { return request(std::move(message)); }
Status Sender::seal(wire::Seal message) { return request(message); }

void Sender::answer(uint64_t request, Reply reply) {
  MutexLock lock(requests_mutex_);
  auto found = requests_.find(request);
  if (found == requests_.end()) return;
  found->second.reply.set_value(std::move(reply));
  requests_.erase(found);
}

Result<Sender::ReadBackPermit> Sender::await_read_back_permit(const Interrupted& interrupted) {
  while (!read_backs_left_.try_acquire_for(kInterruptCheck)) {
    if (interrupted && interrupted()) return failure(interruption());
  }
  return ReadBackPermit(&read_backs_left_);
}

Result<size_t> Sender::read_back(uint64_t node, uint64_t offset, std::span<std::byte> bytes,
                                 const Interrupted& interrupted) {
  size_t filled = 0;
  while (filled < bytes.size()) {
    wire::ReadBack message;
    message.node = node;
    message.offset = offset + filled;
    message.length =
        static_cast<uint32_t>(std::min<size_t>(bytes.size() - filled, wire::kReadBackMaxBytes));
    auto permit = await_read_back_permit(interrupted);
    if (!permit) return failure(permit.error());
    auto part = request_bytes(message, interrupted, std::move(*permit));
    if (!part) return failure(part.error());
    if (part->size() > message.length)
      return failure(EIO, "read back from " + connector_.target() +
                              ": the target sent more bytes than requested");
    std::copy(part->begin(), part->end(), bytes.begin() + static_cast<ptrdiff_t>(filled));
    filled += part->size();
    if (part->size() < message.length) break;
  }
  return filled;
}

// The target handles messages in order, so its answer proves that it has applied all earlier ones.
Status Sender::await_applied(uint64_t node, const Interrupted& interrupted) {
  std::byte byte;
  auto answered = read_back(node, 0, {&byte, 1}, interrupted);
  if (!answered) return failure(answered.error());
  return {};
}

// ---- State -------------------------------------------------------------------------------------

wire::Space Sender::space() const {
  MutexLock lock(space_mutex_);
  return space_;
}

Status Sender::status() const {
  if (channel_.failed()) return failure(session_error());
  return {};
}

Error Sender::session_error() const {
  Error error = channel_.failed().value_or(Error{});
  error.errno_value = EIO;
  return error;
}

OutletCounters Sender::counters() const {
  OutletCounters counters;
  counters.verified_bytes = verified_bytes_;
  counters.wire_bytes = verified_wire_bytes_;
  counters.announced_bytes = announced_bytes_;
  counters.chunks = chunks_;
  counters.inline_chunks = inline_chunks_;
  counters.reconnections = reconnections_;
  counters.connected = channel_.connected();
  {
    MutexLock lock(transport_mutex_);
    if (transport_) {
      counters.transport = transport_->transport;
      counters.transport_why = transport_->why;
    }
  }
  counters.peer = connector_.target();
  counters.peer_name = target_name_;
  counters.security = target_identity_.text();
  counters.encryption = to_string(protection_->kind());
  counters.encryption_why = protection_->why();
  counters.compression = to_string(options_.compression);
  counters.silence =
      std::chrono::duration_cast<milliseconds>(Clock::now() - channel_.last_received());
  counters.silence_max = silence_max();
  return counters;
}

}  // namespace ppmr
