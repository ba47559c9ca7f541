#include "rdma_stream/connection/tls_connection.h"

#include <openssl/err.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cassert>

#include "rdma_stream/connection/handshake.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kRecordMaxBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// The writer gathers records until they have this length, then sends them with one system call.
constexpr size_t kSendAtOnceBytes = 128 << 10;
constexpr size_t kFetchAtOnceBytes = 64 << 10;
constexpr size_t kFetchUnauthenticatedBytes = 4 << 10;
// RFC 8446, 5.5 allows 2^24.5 full records per AES-GCM key. A new key costs almost nothing.
constexpr uint64_t kRecordsPerKey = 1 << 20;
constexpr milliseconds kLastMessageTimeout{100};
constexpr uint8_t kFirstByteOfPpmr = 'P';
constexpr uint8_t kAlertRecord = SSL3_RT_ALERT;
constexpr uint8_t kHandshakeRecord = SSL3_RT_HANDSHAKE;

// Returns a text that names an alert of the peer and its likely cause.
std::string alert_text(int alert, bool shares_key) {
  std::string text = "TLS alert '" + std::string(::SSL_alert_desc_string_long(alert)) + "'";
  switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
      return text + ": by its clock the certificate of this node has expired or is not valid yet";
    case SSL_AD_CERTIFICATE_REVOKED:
      return text + ": the certificate of this node was revoked; issue a new one";
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
      return text +
             ": the extended key usage of this node's certificate does not allow this role (a "
             "node that connects needs clientAuth, one that listens serverAuth)";
    case SSL_AD_UNKNOWN_CA:
      return text +
             ": it does not trust the authority of this node's certificate, or it uses a shared "
             "key";
    case SSL_AD_CERTIFICATE_REQUIRED:
      return text + ": it requires a certificate, and this node has none";
    case SSL_AD_HANDSHAKE_FAILURE:
    case SSL_AD_ILLEGAL_PARAMETER:
    case SSL_AD_DECRYPT_ERROR:
      return text + (shares_key
                         ? ": most likely it has another key"
                         : ": its authority did not sign this node's certificate, or it uses a "
                           "shared key");
    default:
      return text;
  }
}

}  // namespace

TlsConnection::TlsConnection(SslPointer ssl, std::shared_ptr<Connection> connection)
    : connection_(std::move(connection)),
      records_per_key_(kRecordsPerKey),
      ssl_(std::move(ssl)),
      incoming_(::BIO_new(::BIO_s_mem())),
      outgoing_(::BIO_new(::BIO_s_mem())),
      fetched_(kFetchUnauthenticatedBytes) {
  ::SSL_set_bio(ssl_.get(), incoming_, outgoing_);
  SSL_set_app_data(ssl_.get(), &notes_);
}

TlsConnection::~TlsConnection() {
  if (shut_down_ || ::SSL_is_init_finished(ssl_.get()) == 0) return;
  {
    MutexLock lock(mutex_);
    ::ERR_clear_error();
    ::SSL_shutdown(ssl_.get());
    take_out_locked();
  }
  connection_->set_write_timeout(kLastMessageTimeout);
  (void)send_out();
}

// ---- Handshake ---------------------------------------------------------------------------------

Status TlsConnection::shake_hands(milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  connection_->set_write_timeout(timeout);
  bool received = false;
  for (;;) {
    bool done = false;
    Status advanced = advance_handshake(done);
    // If the handshake fails before this node has sent a byte, send no alert: the caller sends a
    // reject with the reason instead.
    if (advanced || sent_something_) {
      if (auto sent = send_out(); !sent && advanced) advanced = sent;
    }
    if (!advanced) return advanced;
    if (done) {
      fetched_.resize(kFetchAtOnceBytes);
      to_send_.reserve(kSendAtOnceBytes + 2 * kRecordMaxBytes);
      return {};
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds(0)) {
      return failure(ETIMEDOUT, "TLS handshake with " + peer() + ": not complete within " +
                                    std::to_string(timeout.count()) + " ms");
    }
    connection_->set_read_timeout(left);
    if (!received) {
      auto first = connection_->peek();
      if (first && *first != std::byte{kHandshakeRecord} && *first != std::byte{kAlertRecord}) {
        return failure(plain_text_answer());
      }
      received = first.has_value();
    }
    if (auto fetched = fetch_records(); !fetched) {
      Error lost = fetched.error();
      lost.message = "TLS handshake with " + peer() + ": " + lost.message;
      return failure(lost);
    }
  }
}

Status TlsConnection::advance_handshake(bool& done) {
  MutexLock lock(mutex_);
  ::ERR_clear_error();
  const int result = ::SSL_do_handshake(ssl_.get());
  const int error = ::SSL_get_error(ssl_.get(), result);
  done = result == 1;
  Status advanced;
  if (!done && error != SSL_ERROR_WANT_READ) advanced = failure(ssl_error_locked("TLS handshake"));
  take_out_locked();
  return advanced;
}

// Returns the error when the peer did not answer with TLS. A ppmr target may refuse in plain text.
// Its reject is untrusted, so the caller only shows the text. The exception is EBUSY: the caller
// then tries again.
Error TlsConnection::plain_text_answer() {
  auto answer = receive_handshake(*connection_, kLastMessageTimeout);
  if (!answer) return answer.error();
  if (answer->kind != wire::HandshakeKind::kReject) {
    return {EPROTO, "the peer at " + peer() + " uses plain text instead of TLS"};
  }
  Error error = rejection(*connection_, *answer);
  if (error.errno_value != EBUSY) error.errno_value = EACCES;
  return error;
}

// Makes an Error from this thread's OpenSSL error queue.
Error TlsConnection::ssl_error_locked(const char* operation) {
  const std::string where = std::string(operation) + " with " + peer() + ": ";
  const unsigned long code = ::ERR_peek_error();  // NOLINT(runtime/int): OpenSSL's
  const int reason = ERR_GET_REASON(code);
  const bool shares_key = ::SSL_get_privatekey(ssl_.get()) == nullptr;
  if (ERR_GET_LIB(code) == ERR_LIB_SSL && reason >= SSL_AD_REASON_OFFSET) {
    return {EACCES,
            where + "the peer refused: " + alert_text(reason - SSL_AD_REASON_OFFSET, shares_key)};
  }
  if (!notes_.reason.empty()) return {EACCES, where + notes_.reason};
  const char* text = code != 0 ? ::ERR_reason_error_string(code) : nullptr;
  return {EPROTO, where + (text != nullptr ? text : "connection closed")};
}

Status TlsConnection::export_secret(std::string_view label, std::span<const uint8_t> context,
                                    std::span<uint8_t> secret) {
  MutexLock lock(mutex_);
  ::ERR_clear_error();
  if (::SSL_export_keying_material(ssl_.get(), secret.data(), secret.size(), label.data(),
                                   label.size(), context.data(), context.size(),
                                   /*use_context=*/1) != 1) {
    return failure(ssl_error_locked("export a secret of the TLS connection"));
  }
  return {};
}

// ---- Reading -----------------------------------------------------------------------------------

Status TlsConnection::fetch_records() {
  auto count = connection_->read_some(fetched_);
  if (!count) return failure(count.error());
  MutexLock lock(mutex_);
  [[maybe_unused]] const int kept =
      ::BIO_write(incoming_, fetched_.data(), static_cast<int>(*count));
  assert(kept == static_cast<int>(*count));
  return {};
}

Result<size_t> TlsConnection::receive(std::span<std::byte> bytes, bool keep) {
  const auto began = Clock::now();
  for (;;) {
    {
      MutexLock lock(mutex_);
      ::ERR_clear_error();
      size_t count = 0;
      const int got = keep ? ::SSL_peek_ex(ssl_.get(), bytes.data(), bytes.size(), &count)
                           : ::SSL_read_ex(ssl_.get(), bytes.data(), bytes.size(), &count);
      if (got == 1) return count;
      const int error = ::SSL_get_error(ssl_.get(), got);
      if (error == SSL_ERROR_ZERO_RETURN) {
        return failure(ECONNRESET, "receive from " + peer() + ": connection closed");
      }
      if (error != SSL_ERROR_WANT_READ) return failure(ssl_error_locked("receive over TLS"));
    }
    // Bytes that never complete a record do not count as progress.
    const milliseconds timeout = read_timeout_;
    if (timeout > milliseconds(0) && Clock::now() - began > timeout) {
      return system_failure("receive from", peer(), ETIMEDOUT);
    }
    if (auto fetched = fetch_records(); !fetched) return failure(fetched.error());
  }
}

Status TlsConnection::read(std::span<iovec> buffers, size_t& received_bytes) {
  received_bytes = 0;
  for (iovec& buffer : buffers) {
    while (buffer.iov_len > 0) {
      auto count = receive({static_cast<std::byte*>(buffer.iov_base), buffer.iov_len}, false);
      if (!count) return failure(count.error());
      received_bytes += *count;
      buffer.iov_base = static_cast<std::byte*>(buffer.iov_base) + *count;
      buffer.iov_len -= *count;
    }
  }
  return {};
}

Result<size_t> TlsConnection::read_some(std::span<std::byte> bytes) {
  return receive(bytes, /*keep=*/false);
}

Result<std::byte> TlsConnection::peek() {
  std::byte byte{};
  if (auto received = receive({&byte, 1}, /*keep=*/true); !received) {
    return failure(received.error());
  }
  return byte;
}

// ---- Writing -----------------------------------------------------------------------------------

Status TlsConnection::write(std::span<iovec> buffers) {
  for (const iovec& buffer : buffers) {
    std::span rest(static_cast<const std::byte*>(buffer.iov_base), buffer.iov_len);
    while (!rest.empty()) {
      const size_t length = std::min(rest.size(), kRecordMaxBytes);
      if (auto sealed = seal_record(rest.first(length)); !sealed) return sealed;
      rest = rest.subspan(length);
      if (to_send_.size() < kSendAtOnceBytes) continue;
      if (auto sent = send_out(); !sent) return sent;
    }
  }
  return send_out();
}

Status TlsConnection::seal_record(std::span<const std::byte> bytes) {
  MutexLock lock(mutex_);
  ::ERR_clear_error();
  if (++records_under_key_ > records_per_key_) {
    if (::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
      return failure(ssl_error_locked("update the key over TLS"));
    }
    records_under_key_ = 1;
    ++key_updates_;
  }
  size_t count = 0;
  if (::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count) != 1) {
    Error error = ssl_error_locked("send over TLS");
    error.errno_value = EPIPE;
    return failure(error);
  }
  take_out_locked();
  return {};
}

void TlsConnection::take_out_locked() {
  const size_t waiting = ::BIO_ctrl_pending(outgoing_);
  if (waiting == 0) return;
  const size_t before = to_send_.size();
  to_send_.resize(before + waiting);
  [[maybe_unused]] const int taken =
      ::BIO_read(outgoing_, to_send_.data() + before, static_cast<int>(waiting));
  assert(taken == static_cast<int>(waiting));
}

Status TlsConnection::send_out() {
  if (to_send_.empty()) return {};
  sent_something_ = true;
  const Status sent = connection_->write(std::span<const std::byte>(to_send_));
  to_send_.clear();
  return sent;
}

// ---- Timeouts and end --------------------------------------------------------------------------

void TlsConnection::set_read_timeout(milliseconds timeout) {
  read_timeout_ = timeout;
  connection_->set_read_timeout(timeout);
}

void TlsConnection::set_write_timeout(milliseconds timeout) {
  connection_->set_write_timeout(timeout);
}

void TlsConnection::shut_down() {
  shut_down_ = true;
  connection_->shut_down();
}

}  // namespace ppmr
