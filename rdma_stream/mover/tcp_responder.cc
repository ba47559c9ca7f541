#include "rdma_stream/mover/tcp_responder.h"

#include <sys/prctl.h>

#include <exception>

#include "rdma_stream/connection/handshake.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// Ends a read of a slot, even if sending throws: otherwise the slot could not be reused.
class ReadGuard {
 public:
  ReadGuard(SlotReader& slots, uint32_t slot) : slots_(slots), slot_(slot) {}
  ~ReadGuard() { slots_.end_read(slot_); }
  ReadGuard(const ReadGuard&) = delete;
  ReadGuard& operator=(const ReadGuard&) = delete;

 private:
  SlotReader& slots_;
  const uint32_t slot_;
};

}  // namespace

TcpResponder::TcpResponder(Options options, Connector& connector, SlotReader& slots)
    : options_(options), connector_(connector), slots_(slots), connections_(options.stream_count) {
  try {
    for (uint32_t stream = 0; stream < options_.stream_count; ++stream) {
      threads_.emplace_back([this, stream] { serve_stream(stream); });
    }
  } catch (...) {
    join();
    throw;
  }
}

TcpResponder::~TcpResponder() { join(); }

void TcpResponder::join() {
  stop();
  for (auto& thread : threads_) thread.join();
}

void TcpResponder::stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  for (auto& connection : connections_) {
    if (connection) connection->shut_down();
  }
  stop_requested_.notify_all();
}

void TcpResponder::serve_stream(uint32_t stream) {
  (void)::prctl(PR_SET_NAME, "ppmr-stream");
  MutexLock lock(mutex_);
  for (uint64_t attempt = 1; !stopping_; ++attempt) {
    lock.unlock();
    try {
      if (auto ended = connect_and_serve(stream, attempt); !ended) {
        spdlog::debug("stream {} ended: {}", stream, ended.error().message);
      }
    } catch (const std::exception& exception) {
      spdlog::error("stream {} ended: {}", stream, exception.what());
    }
    lock.lock();
    if (auto& connection = connections_[stream]) {
      connection->shut_down();
      connection = nullptr;
    }
    stop_requested_.wait_for(mutex_, options_.timings.retry_interval,
                             [this]() PPMR_REQUIRES(mutex_) { return stopping_; });
  }
}

// The target accepts each attempt number once, so a recorded hello cannot be replayed.
Status TcpResponder::connect_and_serve(uint32_t stream, uint64_t attempt) {
  auto connected = connector_.connect_data(options_.timings.attempt_max);
  if (!connected) return failure(connected.error());
  const std::shared_ptr<Connection> connection = std::move(*connected);
  {
    MutexLock lock(mutex_);
    if (stopping_) return failure(ECANCELED, "the session was closed");
    connections_[stream] = connection;
  }
  const wire::DataHello hello{.session = options_.session, .stream = stream, .attempt = attempt};
  auto greeted =
      greet_target(*connection, hello, options_.token, options_.timings.connection_silence_max);
  return greeted ? serve_connection(*connection) : greeted;
}

Status TcpResponder::serve_connection(Connection& connection) {
  // A stream may be idle for long: only the end of the connection, or stop(), ends this read.
  connection.set_read_timeout(std::chrono::milliseconds(0));
  // Ends a write that makes no progress, because the write would keep its slot in use. A working
  // target reads the bytes that it requested.
  connection.set_write_timeout(options_.timings.connection_silence_max);
  for (;;) {
    std::array<std::byte, wire::kReadRequestBytes> request_bytes;
    if (auto read = connection.read(std::span<std::byte>(request_bytes)); !read) return read;
    const auto request = *wire::decode<wire::ReadRequest>(request_bytes);
    if (wire::fields_crc(request) != request.crc) {
      return failure(EPROTO, "read request from " + connection.peer() + ": checksum mismatch");
    }
    auto bytes = slots_.begin_read(request);
    if (!bytes) return failure(bytes.error());
    const ReadGuard guard(slots_, request.slot);
    wire::ReadResponse response{request.id, request.generation, request.length, 0};
    response.crc = wire::fields_crc(response);
    std::array<std::byte, wire::kReadResponseBytes> header;
    wire::Writer(std::span<std::byte>(header))(response);
    std::array<iovec, 2> buffers = {iovec{header.data(), header.size()},
                                    iovec{const_cast<std::byte*>(bytes->data()), bytes->size()}};
    if (auto written = connection.write(buffers); !written) return written;
  }
}

}  // namespace ppmr
