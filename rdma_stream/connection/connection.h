// The interface between the protocol and the network: an ordered stream of bytes between two peers.
// In production this is TCP (tcp_connection.h), or TLS over TCP (tls_connection.h). Tests use a
// seeded faulty network (tests/stream/faulty_transport.h).
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "rdma_stream/connection/peer_identity.h"

namespace ppmr {

// Threads: one may read while another one writes. Any thread may call shut_down(), which makes both
// calls return.
class Connection {
 public:
  virtual ~Connection() = default;

  // Fills `buffers` completely and modifies the iovecs. Errors: ETIMEDOUT when no byte arrived for
  // the read timeout (the stream is intact if `received_bytes` is 0), ECONNRESET at the end of the
  // stream, those of recv(2).
  virtual Status read(std::span<iovec> buffers, size_t& received_bytes) = 0;
  // Waits for at least one byte and reads the bytes that have arrived, as far as they fit into
  // `bytes`. Returns the number of bytes. Errors: those of read().
  virtual Result<size_t> read_some(std::span<std::byte> bytes) = 0;
  // Returns the next byte and leaves it in the stream. Errors: those of read().
  virtual Result<std::byte> peek() = 0;
  // Writes all of `buffers` and modifies the iovecs. Blocks while the peer does not read. Errors:
  // ETIMEDOUT when no byte could be written for the write timeout, those of send(2).
  virtual Status write(std::span<iovec> buffers) = 0;
  // A timeout of zero, the initial value, means no limit.
  virtual void set_read_timeout(std::chrono::milliseconds timeout) = 0;
  virtual void set_write_timeout(std::chrono::milliseconds timeout) = 0;
  // Ends the connection with ETIMEDOUT when the peer's kernel has confirmed nothing for about this
  // long: a read then notices a dead machine, but waits for a process that is busy. Do not use it
  // for bulk data: a peer that reads nothing for this long also counts as silent. The kernel probes
  // once a second.
  virtual void set_silence_max(std::chrono::milliseconds) {}
  virtual void shut_down() = 0;
  virtual const std::string& peer() const = 0;  // an address, for messages
  // The identity that the peer has proved; constant.
  virtual PeerIdentity peer_identity() const { return {}; }
  // Returns whether both ends have the same address or loopback addresses.
  virtual bool is_local() const { return true; }
  // Fills `secret` with a secret that only the two ends of this connection can compute. Both ends
  // get the same secret for the same label and context (RFC 8446, 7.5). Errors: ENOTSUP without
  // TLS, EPROTO.
  virtual Status export_secret(std::string_view label, std::span<const uint8_t> context,
                               std::span<uint8_t> secret);

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

inline Status Connection::export_secret(std::string_view, std::span<const uint8_t>,
                                        std::span<uint8_t>) {
  return failure(ENOTSUP, "derive a secret of the connection to " + peer() +
                              ": it is plain text, and secrets require TLS");
}

// The way from a source to its target. Threads: any.
class Connector {
 public:
  virtual ~Connector() = default;
  virtual Result<std::unique_ptr<Connection>> connect(std::chrono::milliseconds timeout) = 0;
  // Opens a connection for payload only. It uses plain TCP: the session encrypts each chunk
  // (chunk_cipher.h), and the hello proves that the source belongs to the session
  // (session_proof.h).
  virtual Result<std::unique_ptr<Connection>> connect_data(std::chrono::milliseconds timeout) {
    return connect(timeout);
  }
  // Checks the name in the welcome of a target. Errors: EACCES; the caller must then close the
  // connection.
  virtual Status check_target(const Connection&, const std::string&) const { return {}; }
  virtual const std::string& target() const = 0;  // an address, for messages
};

// The way from sources to the target. Threads: only one may call accept(); any may call the other
// members.
class Listener {
 public:
  virtual ~Listener() = default;
  // Errors: ECANCELED after close(). Any other error concerns one connection only: call accept()
  // again.
  virtual Result<std::unique_ptr<Connection>> accept() = 0;
  // The first step on an accepted connection: authenticates the peer, and sends the reason to a
  // peer that it refuses. The peer can make this call block, so call it on a thread for this
  // connection. Shutting down `connection` also ends the returned connection. Errors: the reason
  // why the peer is refused.
  virtual Result<std::shared_ptr<Connection>> identify(std::shared_ptr<Connection> connection,
                                                       std::chrono::milliseconds) {
    return connection;
  }
  // Returns whether every peer must authenticate. Data connections authenticate with a session
  // proof.
  virtual bool authenticates() const { return false; }
  virtual void close() = 0;
  virtual const std::string& address() const = 0;
};

}  // namespace ppmr
