// TLS over another connection, which carries the records.
//
// An SSL object must not be used by two threads at once, but a Connection is read and written at
// the same time. So OpenSSL works on memory buffers, under a mutex that is never held across I/O:
// the reader moves received records from the connection into memory, the writer moves records to
// send from memory to the connection. Reading may also produce a record to send (the answer to a
// key update): it waits in memory and precedes the next write.
//
// Considered and not used: SSL on a non-blocking socket with poll(2) outside the mutex. It needs a
// real socket, so no test could put a faulty network below it.
#pragma once

#include <openssl/ssl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "rdma_stream/connection/connection.h"

namespace ppmr {

// Threads: the same as for Connection.
class TlsConnection final : public Connection {
 public:
  using SslPointer = std::unique_ptr<SSL, decltype(&::SSL_free)>;

  // Values that OpenSSL's callbacks need, or results that they cannot return.
  struct Notes {
    std::string reason;       // why the handshake failed
    std::string key_name;     // source: names its key on the wire
    PeerIdentity key_holder;  // target: the identity to which the source's key is bound
  };

  // The caller has set the role of `ssl` (connect or accept). The constructor sets the application
  // data of `ssl`.
  TlsConnection(SslPointer ssl, std::shared_ptr<Connection> connection);
  // Sends close_notify, unless the connection was shut down.
  ~TlsConnection() override;

  // Errors: EACCES, EPROTO, ETIMEDOUT, those of Connection::read. After an error the caller may
  // send the reason in plain text, unless sent_something() is true, which means that the peer
  // already receives TLS.
  Status shake_hands(std::chrono::milliseconds timeout);
  bool sent_something() const { return sent_something_; }
  void set_peer_identity(PeerIdentity identity) { identity_ = std::move(identity); }
  // The writing side changes its key after this many records; tests use fewer.
  void set_records_per_key(uint64_t records) { records_per_key_ = records; }
  uint64_t key_updates() const { return key_updates_; }
  SSL* ssl() { return ssl_.get(); }
  Notes& notes() { return notes_; }  // read and written before and after the handshake

  using Connection::read;
  using Connection::write;
  Status read(std::span<iovec> buffers, size_t& received_bytes) override;
  Result<size_t> read_some(std::span<std::byte> bytes) override;
  Result<std::byte> peek() override;
  Status write(std::span<iovec> buffers) override;
  void set_read_timeout(std::chrono::milliseconds timeout) override;
  void set_write_timeout(std::chrono::milliseconds timeout) override;
  void set_silence_max(std::chrono::milliseconds silence) override {
    connection_->set_silence_max(silence);
  }
  void shut_down() override;
  const std::string& peer() const override { return connection_->peer(); }
  PeerIdentity peer_identity() const override { return identity_; }
  bool is_local() const override { return connection_->is_local(); }
  Status export_secret(std::string_view label, std::span<const uint8_t> context,
                       std::span<uint8_t> secret) override;

 private:
  Status advance_handshake(bool& done);
  Result<size_t> receive(std::span<std::byte> bytes, bool keep);
  Status fetch_records();
  Status seal_record(std::span<const std::byte> bytes);
  void take_out_locked() PPMR_REQUIRES(mutex_);
  Status send_out();
  Error ssl_error_locked(const char* operation) PPMR_REQUIRES(mutex_);
  Error plain_text_answer();

  const std::shared_ptr<Connection> connection_;
  std::atomic<std::chrono::milliseconds> read_timeout_{std::chrono::milliseconds(0)};
  std::atomic<bool> shut_down_ = false;
  std::atomic<uint64_t> key_updates_ = 0;
  uint64_t records_per_key_;  // constant after construction, except in tests
  bool sent_something_ = false;

  Mutex mutex_;
  // mutex_ guards the SSL object, its BIOs and `notes_`.
  const SslPointer ssl_ PPMR_POINTEE_GUARDED_BY(mutex_);
  BIO* incoming_ PPMR_POINTEE_GUARDED_BY(mutex_);  // owned by ssl_
  BIO* outgoing_ PPMR_POINTEE_GUARDED_BY(mutex_);  // owned by ssl_
  Notes notes_;  // OpenSSL's callbacks write it: used with mutex_ held, or outside the handshake
  PeerIdentity identity_;  // constant after the handshake

  std::vector<std::byte> fetched_;  // only the reader uses it
  // Only the writer uses these members.
  std::vector<std::byte> to_send_;
  uint64_t records_under_key_ = 0;
};

}  // namespace ppmr
