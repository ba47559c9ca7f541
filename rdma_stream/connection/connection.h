// The seam between the protocol and the network: an ordered stream of bytes between two peers.
// TCP in production (tcp_connection.h), TLS over it (tls_connection.h); tests put a seeded faulty
// network behind it.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "buffer_pool/result.h"
#include "rdma_stream/connection/peer_identity.h"

namespace ppmr {

// Threads: one thread reads while one other writes; shut_down() may be called from any thread and
// makes both return.
class Connection {
 public:
  virtual ~Connection() = default;

  // Fills `buffers` completely. Errors: ETIMEDOUT when nothing arrived for the read timeout (if
  // `received_bytes` is 0 then, the stream is still intact), ECONNRESET at the end of the stream,
  // others as of recv(2). The iovecs are used up.
  virtual Status read(std::span<iovec> buffers, size_t& received_bytes) = 0;
  // What has come, one byte at least and as much as fits into `bytes`: says how many. Errors: as
  // above.
  virtual Result<size_t> read_some(std::span<std::byte> bytes) = 0;
  // The next byte, which stays to be read. Errors: as above.
  virtual Result<std::byte> peek() = 0;
  // Writes all of `buffers`; blocks while the peer does not read. Errors: ETIMEDOUT when nothing
  // could be written for the write timeout, others as of send(2). The iovecs are used up.
  virtual Status write(std::span<iovec> buffers) = 0;
  // Zero, as at the beginning, waits for ever.
  virtual void set_read_timeout(std::chrono::milliseconds timeout) = 0;
  virtual void set_write_timeout(std::chrono::milliseconds timeout) = 0;
  virtual void shut_down() = 0;
  virtual const std::string& peer() const = 0;  // an address, for people
  // Who is there, as far as it was proved: constant.
  virtual PeerIdentity peer_identity() const { return {}; }

  Status read(std::span<std::byte> bytes) {
    iovec buffer{bytes.data(), bytes.size()};
    size_t received_bytes = 0;
    return read({&buffer, 1}, received_bytes);
  }
  Status write(std::span<const std::byte> bytes) {
    iovec buffer{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return write({&buffer, 1});
  }
};

// How the source reaches its target. Threads: any.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Result<std::unique_ptr<Connection>> connect(std::chrono::milliseconds timeout) = 0;
  // A connection that carries nothing but payload. It is not encrypted today: who opens it proves
  // with each hello that he is of the session (session_proof.h). Encryption of the payload belongs
  // here; targets accept it already.
  virtual Result<std::unique_ptr<Connection>> connect_data(std::chrono::milliseconds timeout) {
    return connect(timeout);
  }
  virtual const std::string& target() const = 0;  // an address, for people
};

// How the target is reached by its sources. Threads: accept() by one; the others by any.
class Listener {
 public:
  virtual ~Listener() = default;
  // Errors: ECANCELED after close(); others concern one connection only, call again.
  virtual Result<std::unique_ptr<Connection>> accept() = 0;
  // The first step on a connection that was accepted, on a thread that serves it alone as it waits
  // for the peer: finds out who it is, and tells one that is refused why. Shutting `connection`
  // down ends it and what comes of it. Errors: why the peer is refused.
  virtual Result<std::shared_ptr<Connection>> identify(std::shared_ptr<Connection> connection,
                                                       std::chrono::milliseconds) {
    return connection;
  }
  // Whether every peer must have proved who it is. Data connections bring a proof of their own.
  virtual bool authenticates() const { return false; }
  virtual void close() = 0;
  virtual const std::string& address() const = 0;
};

}  // namespace ppmr
