#include "rdma_stream/mover/tcp_puller.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <exception>

#include "rdma_stream/wire/wire.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// The limit for requested bytes in flight on one connection. It keeps a link of 10 Gb/s with a
// round trip of 3 ms busy, and an urgent pull still arrives soon.
constexpr uint32_t kWindowBytes = 4 << 20;
constexpr size_t kWindowReads = 64;

Status send_request(Connection& connection, uint32_t id, const Pull& pull) {
  wire::ReadRequest request{id, pull.slot, pull.generation, pull.slot_offset, pull.length, 0};
  request.crc = wire::fields_crc(request);
  std::array<std::byte, wire::kReadRequestBytes> bytes;
  wire::Writer(std::span<std::byte>(bytes))(request);
  return connection.write(std::span<const std::byte>(bytes));
}

// Receives header and payload with one read, the payload directly into the pieces of the image
// store. No reader gets these pieces before verification, so bytes of a wrong response do no harm.
Status receive_response(Connection& connection, uint32_t id, const Pull& pull) {
  std::array<std::byte, wire::kReadResponseBytes> header;
  std::array<iovec, 1 + Landing::kPiecesMax> buffers;
  size_t count = 0;
  buffers[count++] = {header.data(), header.size()};
  uint32_t left = pull.length;
  for (const Landing::Piece& piece : pull.pieces) {
    if (left == 0) break;
    const uint32_t length = std::min(piece.length, left);
    buffers[count++] = {piece.data, length};
    left -= length;
  }
  size_t received_bytes = 0;
  if (auto read = connection.read(std::span(buffers).first(count), received_bytes); !read) {
    return read;
  }
  const auto response = *wire::decode<wire::ReadResponse>(header);
  if (response.crc != wire::fields_crc(response) || response.id != id ||
      response.generation != pull.generation || response.length != pull.length) {
    return failure(EPROTO,
                   "read response from " + connection.peer() + ": does not match the request");
  }
  return {};
}

}  // namespace

// The read requests in flight on one connection. Responses arrive in the order of the requests.
class TcpPuller::Window {
 public:
  bool empty() const { return first_ == last_; }
  bool full() const { return last_ - first_ == kWindowReads || bytes_ >= kWindowBytes; }
  // Returns the id of the request.
  uint32_t push(const Pull& pull) {
    pulls_[last_ % kWindowReads] = pull;
    bytes_ += pull.length;
    return last_++;
  }
  uint32_t first_id() const { return first_; }
  const Pull& first() const { return pulls_[first_ % kWindowReads]; }
  Pull pop() {
    const Pull pull = first();
    ++first_;
    bytes_ -= pull.length;
    return pull;
  }

 private:
  std::array<Pull, kWindowReads> pulls_;
  uint32_t first_ = 0;  // ids in flight: [first_, last_)
  uint32_t last_ = 0;
  uint32_t bytes_ = 0;
};

TcpPuller::TcpPuller(Options options, PullQueue& queue)
    : options_(options), queue_(queue), streams_(options.stream_count) {
  try {
    for (uint32_t stream = 0; stream < options_.stream_count; ++stream) {
      threads_.emplace_back([this, stream] { run_stream(stream); });
    }
  } catch (...) {
    finish();
    throw;
  }
}

TcpPuller::~TcpPuller() { finish(); }

void TcpPuller::finish() {
  stop();
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void TcpPuller::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  for (Stream& stream : streams_) {
    if (stream.attached) stream.attached->shut_down();
    if (stream.current) stream.current->shut_down();
  }
  changed_.notify_all();
}

Status TcpPuller::attach(uint32_t stream, std::shared_ptr<Connection> connection) {
  MutexLock lock(mutex_);
  if (stream >= streams_.size()) {
    return failure(EPROTO, "stream " + std::to_string(stream) +
                               " does not exist: the session has " +
                               std::to_string(streams_.size()) + " streams");
  }
  if (stopping_) return failure(ECANCELED, "the session has ended");
  if (streams_[stream].attached) streams_[stream].attached->shut_down();
  if (streams_[stream].current) streams_[stream].current->shut_down();
  streams_[stream].attached = std::move(connection);
  changed_.notify_all();
  return {};
}

void TcpPuller::run_stream(uint32_t index) {
  (void)::prctl(PR_SET_NAME, "ppmr-stream");
  MutexLock lock(mutex_);
  Stream& stream = streams_[index];
  for (;;) {
    changed_.wait(mutex_, [&]() PPMR_REQUIRES(mutex_) { return stopping_ || stream.attached; });
    if (stopping_) return;
    stream.current = std::exchange(stream.attached, nullptr);
    const auto connection = stream.current;
    lock.unlock();
    pull_over(*connection);
    connection->shut_down();
    lock.lock();
    stream.current = nullptr;
  }
}

// Pulls over `connection` until it breaks or the queue is closed.
void TcpPuller::pull_over(Connection& connection) {
  Window window;
  try {
    if (auto status = exchange(connection, window); !status) {
      spdlog::debug("stream from {} is broken: {}", connection.peer(), status.error().message);
    }
  } catch (const std::exception& exception) {
    spdlog::error("stream from {} is broken: {}", connection.peer(), exception.what());
  }
  while (!window.empty()) queue_.lost(window.pop());
}

Status TcpPuller::exchange(Connection& connection, Window& window) {
  connection.set_read_timeout(options_.timings.read_answer_max);
  for (Pull pull;;) {
    while (!window.full() && queue_.take(pull, /*wait=*/window.empty())) {
      const uint32_t id = window.push(pull);
      if (auto sent = send_request(connection, id, pull); !sent) return sent;
    }
    if (window.empty()) return {};  // the queue is closed
    auto received = receive_response(connection, window.first_id(), window.first());
    if (!received) return received;
    queue_.completed(window.pop());
  }
}

}  // namespace ppmr
