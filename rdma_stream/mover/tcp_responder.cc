#include "rdma_stream/mover/tcp_responder.h"

#include "rdma_stream/connection/handshake.h"
#include "third_party/spdlog.h"

namespace ppmr {

TcpResponder::TcpResponder(Options options, Connector& connector, SlotReader& slots)
    : options_(options), connector_(connector), slots_(slots), connections_(options.stream_count) {
  for (uint32_t stream = 0; stream < options_.stream_count; ++stream) {
    threads_.emplace_back([this, stream] { serve_stream(stream); });
  }
}

TcpResponder::~TcpResponder() {
  stop();
  for (auto& thread : threads_) thread.join();
}

void TcpResponder::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  for (auto& connection : connections_) {
    if (connection) connection->shut_down();
  }
  stop_requested_.notify_all();
}

void TcpResponder::serve_stream(uint32_t stream) {
  wire::DataHello hello;
  hello.session = options_.session;
  hello.stream = stream;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    auto connected = connector_.connect_data(options_.timings.attempt_max);
    lock.lock();
    if (connected && !stopping_) {
      const std::shared_ptr<Connection> connection = std::move(*connected);
      connections_[stream] = connection;
      lock.unlock();
      ++hello.attempt;
      Status ended =
          greet_target(*connection, hello, options_.token, options_.timings.connection_silence_max);
      if (ended) ended = serve_connection(*connection);
      spdlog::debug("stream {} ended: {}", stream, ended.error().message);
      connection->shut_down();
      lock.lock();
      connections_[stream] = nullptr;
    }
    stop_requested_.wait_for(lock, options_.timings.retry_interval, [this] { return stopping_; });
  }
}

Status TcpResponder::serve_connection(Connection& connection) {
  // A stream may idle for long; its end, or stop(), wakes the read.
  connection.set_read_timeout(std::chrono::milliseconds(0));
  // A target that asked reads: a write that gets nowhere would keep its slot from being released.
  connection.set_write_timeout(options_.timings.connection_silence_max);
  for (;;) {
    std::array<std::byte, wire::kReadRequestBytes> request_bytes;
    if (auto read = connection.read(std::span<std::byte>(request_bytes)); !read) return read;
    const auto request = *wire::decode<wire::ReadRequest>(request_bytes);
    if (wire::fields_crc(request) != request.crc) {
      return failure(EPROTO, "read request: checksum mismatch");
    }
    auto bytes = slots_.begin_read(request);
    if (!bytes) return failure(bytes.error());
    wire::ReadResponse response{request.id, request.generation, request.length, 0};
    response.crc = wire::fields_crc(response);
    std::array<std::byte, wire::kReadResponseBytes> header;
    wire::Writer(std::span<std::byte>(header))(response);
    std::array<iovec, 2> buffers = {iovec{header.data(), header.size()},
                                    iovec{const_cast<std::byte*>(bytes->data()), bytes->size()}};
    Status written = connection.write(buffers);
    slots_.end_read(request.slot);
    if (!written) return written;
  }
}

}  // namespace ppmr
