// TLS over another connection: what is read and written there are records.
//
// An SSL object is not for two threads at once, while a Connection is read and written at the same
// time. So OpenSSL works on memory alone, under a mutex that is never held while bytes travel: the
// reader brings records from the connection into the memory, the writer takes them out of it. What
// reading gives rise to (the answer to a key update) waits there and goes first with the next
// write, as it must. Rejected: SSL on a non-blocking socket with poll(2) outside of the mutex; it
// needs the socket itself, and no test could put a faulty network below.
#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rdma_stream/connection/connection.h"

namespace ppmr {

// Threads: as Connection.
class TlsConnection final : public Connection {
 public:
  using SslPointer = std::unique_ptr<SSL, decltype(&::SSL_free)>;

  // Why the handshake with a peer failed, noted by OpenSSL's callbacks, which cannot say it.
  struct Notes {
    std::string reason;
  };

  // `ssl` knows its role, and this becomes its application data.
  TlsConnection(SslPointer ssl, std::shared_ptr<Connection> connection);
  // Tells the peer that the stream ends here (close_notify), unless it was shut down.
  ~TlsConnection() override;

  // Errors: EACCES, EPROTO, ETIMEDOUT, those of Connection::read. A peer that can be told by TLS
  // has been told; where nothing was said yet, it is the caller's to say it in plain text.
  Status shake_hands(std::chrono::milliseconds timeout);
  bool said_something() const { return said_something_; }
  void set_peer_identity(PeerIdentity identity) { identity_ = std::move(identity); }
  // After so many records the writing side takes a new key; less only in tests.
  void set_records_per_key(uint64_t records) { records_per_key_ = records; }
  uint64_t key_updates() const { return key_updates_; }
  SSL* ssl() { return ssl_.get(); }

  using Connection::read;
  using Connection::write;
  Status read(std::span<iovec> buffers, size_t& received_bytes) override;
  Result<size_t> read_some(std::span<std::byte> bytes) override;
  Result<std::byte> peek() override;
  Status write(std::span<iovec> buffers) override;
  void set_read_timeout(std::chrono::milliseconds timeout) override;
  void set_write_timeout(std::chrono::milliseconds timeout) override;
  void shut_down() override;
  const std::string& peer() const override { return connection_->peer(); }
  PeerIdentity peer_identity() const override { return identity_; }

 private:
  Status advance_handshake(bool& done);
  Result<size_t> receive(std::span<std::byte> bytes, bool keep);
  Status fetch_records();
  Status seal_record(std::span<const std::byte> bytes);
  void take_out_locked();
  Status send_out();
  Error what_failed_locked(const char* operation);
  Error not_tls();

  const std::shared_ptr<Connection> connection_;
  std::atomic<std::chrono::milliseconds> read_timeout_{std::chrono::milliseconds(0)};
  std::atomic<bool> shut_down_ = false;
  std::atomic<uint64_t> key_updates_ = 0;
  uint64_t records_per_key_;  // constant after construction, but for tests
  bool said_something_ = false;

  std::mutex mutex_;
  const SslPointer ssl_;  // guarded by mutex_, with its memory and `notes_`
  BIO* incoming_;         // of ssl_
  BIO* outgoing_;         // of ssl_
  Notes notes_;
  PeerIdentity identity_;  // constant after the handshake

  std::vector<std::byte> fetched_;  // the reader's
  std::vector<std::byte> to_send_;  // the writer's
  uint64_t records_under_key_ = 0;  // the writer's
};

}  // namespace ppmr
