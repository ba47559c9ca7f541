#include "rdma_stream/connection/security.h"

#include <array>
#include <optional>

#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/peer_user.h"
#include "rdma_stream/connection/tcp_connection.h"
#include "rdma_stream/connection/tls_context.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::byte kTlsHandshakeRecord{SSL3_RT_HANDSHAKE};
// Closing a socket with unread bytes resets the connection, and the peer may not get our last
// message. So a refused connection is read for at most this long before it is closed.
constexpr milliseconds kHangUpPatience{500};
constexpr int kHangUpReadsMax = 64;

// Waits briefly until a refused peer has read the reason and closes the connection.
void await_hang_up(Connection& connection) {
  connection.set_read_timeout(kHangUpPatience);
  const auto deadline = Clock::now() + kHangUpPatience;
  std::array<std::byte, 4096> ignored;
  for (int i = 0; i < kHangUpReadsMax && Clock::now() < deadline; ++i) {
    if (!connection.read_some(ignored)) return;
  }
}

class TlsConnector final : public Connector {
 public:
  TlsConnector(std::unique_ptr<Connector> plain, std::shared_ptr<const TlsContext> tls)
      : plain_(std::move(plain)), tls_(std::move(tls)) {}

  Result<std::unique_ptr<Connection>> connect(milliseconds timeout) override {
    auto connection = plain_->connect(timeout);
    if (!connection) return failure(connection.error());
    return tls_->connect(std::move(*connection), timeout);
  }
  Result<std::unique_ptr<Connection>> connect_data(milliseconds timeout) override {
    return plain_->connect_data(timeout);
  }
  const std::string& target() const override { return plain_->target(); }

 private:
  const std::unique_ptr<Connector> plain_;
  const std::shared_ptr<const TlsContext> tls_;
};

class SecureListener final : public Listener {
 public:
  SecureListener(std::unique_ptr<Listener> plain, std::shared_ptr<const TlsContext> tls,
                 std::optional<PeerUsers> users = std::nullopt)
      : plain_(std::move(plain)), tls_(std::move(tls)), users_(std::move(users)) {}

  Result<std::unique_ptr<Connection>> accept() override { return plain_->accept(); }
  void close() override { plain_->close(); }
  const std::string& address() const override { return plain_->address(); }
  bool authenticates() const override { return tls_ != nullptr; }

  // The first byte distinguishes TLS from a plain-text hello. Data connections always use plain
  // text. So do peers without credentials; the caller rejects them if this target has credentials.
  Result<std::shared_ptr<Connection>> identify(std::shared_ptr<Connection> connection,
                                               milliseconds timeout) override {
    if (users_) {
      if (auto checked = users_->check_source(connection->peer(), address()); !checked) {
        send_reject(*connection, wire::RejectReason::kNotAuthenticated, checked.error().message);
        await_hang_up(*connection);
        return failure(checked.error());
      }
    }
    connection->set_read_timeout(timeout);
    auto first = connection->peek();
    if (!first) {
      Error silent = first.error();
      if (silent.errno_value == ETIMEDOUT) {
        silent.message = "sent nothing within " + std::to_string(timeout.count()) + " ms";
      }
      return failure(silent);
    }
    if (*first != kTlsHandshakeRecord) return connection;  // the caller checks its hello
    if (tls_ == nullptr) {
      const std::string text =
          "the source has a key or a certificate, but this target has none: start both with the "
          "same "
          "--key-file, or both without";
      send_reject(*connection, wire::RejectReason::kNotAuthenticated, text);
      await_hang_up(*connection);
      return failure(EACCES, text);
    }
    auto secured = tls_->accept(connection, timeout);
    if (!secured) {
      await_hang_up(*connection);
      return failure(secured.error());
    }
    return std::shared_ptr<Connection>(std::move(*secured));
  }

 private:
  const std::unique_ptr<Listener> plain_;
  const std::shared_ptr<const TlsContext> tls_;
  const std::optional<PeerUsers> users_;  // empty: of any user
};

Status check(const Credentials& credentials) {
  const CertificateFiles& files = credentials.certificate;
  const bool some_file =
      !files.certificate.empty() || !files.private_key.empty() || !files.authority.empty();
  const bool all_files =
      !files.certificate.empty() && !files.private_key.empty() && !files.authority.empty();
  if (!credentials.key_file.empty() && some_file) {
    return failure(EINVAL, "--key-file excludes --tls-cert, --tls-key and --tls-ca");
  }
  if (credentials.insecure && (some_file || !credentials.key_file.empty())) {
    return failure(EINVAL, "--insecure excludes --key-file and --tls-cert");
  }
  if (some_file && !all_files) {
    return failure(EINVAL, "--tls-cert, --tls-key and --tls-ca are required together");
  }
  if (some_file && credentials.allowed_peers.empty()) {
    return failure(EINVAL,
                   "--allow-peer is missing: with certificates, name the peers that are allowed");
  }
  if (!some_file && !credentials.allowed_peers.empty()) {
    return failure(EINVAL,
                   "--allow-peer requires --tls-cert: without certificates peers have no names");
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const Security>> Security::load(const Credentials& credentials) {
  if (auto checked = check(credentials); !checked) return failure(checked.error());
  std::shared_ptr<const TlsContext> tls;
  if (!credentials.key_file.empty()) {
    auto key = read_key_file(credentials.key_file);
    if (!key) return failure(key.error().errno_value, "--key-file: " + key.error().message);
    auto made = TlsContext::with_shared_key(*key);
    if (!made) return failure(made.error());
    tls = std::move(*made);
  }
  if (!credentials.certificate.certificate.empty()) {
    auto made = TlsContext::with_certificate(credentials.certificate, credentials.allowed_peers);
    if (!made) return failure(made.error());
    tls = std::move(*made);
  }
  return std::shared_ptr<const Security>(
      new Security(std::move(tls), credentials.insecure, credentials.trusted_fabric));
}

Result<std::shared_ptr<const Security>> Security::with_shared_key(const SharedKey& key) {
  auto tls = TlsContext::with_shared_key(key);
  if (!tls) return failure(tls.error());
  return std::shared_ptr<const Security>(
      new Security(std::move(*tls), /*insecure=*/false, /*trusted_fabric=*/false));
}

std::shared_ptr<const Security> Security::none() {
  return std::shared_ptr<const Security>(
      new Security(nullptr, /*insecure=*/false, /*trusted_fabric=*/false));
}

Result<std::unique_ptr<Connector>> Security::connector(const std::string& address) const {
  const bool anywhere = tls_ != nullptr || insecure_;
  auto plain = tcp_connector(address, anywhere ? TcpReach::kAnywhere : TcpReach::kLoopback);
  if (!plain) return failure(plain.error());
  return secure(std::move(*plain));
}

Result<std::unique_ptr<Listener>> Security::listener(const std::string& address) const {
  const bool anywhere = tls_ != nullptr || insecure_;
  auto plain = tcp_listener(address, anywhere ? TcpReach::kAnywhere : TcpReach::kLoopback);
  if (!plain) return failure(plain.error());
  if (anywhere) return secure(std::move(*plain));
  auto users = PeerUsers::open();
  if (!users) return failure(users.error());
  return std::make_unique<SecureListener>(std::move(*plain), tls_, std::move(*users));
}

std::unique_ptr<Connector> Security::secure(std::unique_ptr<Connector> plain) const {
  if (tls_ == nullptr) return plain;
  return std::make_unique<TlsConnector>(std::move(plain), tls_);
}

std::unique_ptr<Listener> Security::secure(std::unique_ptr<Listener> plain) const {
  return std::make_unique<SecureListener>(std::move(plain), tls_);
}

std::string Security::warning() const {
  if (!insecure_ && trusted_fabric_ && tls_ != nullptr) {
    return "--trusted-fabric: data is not encrypted if the other side has this option, too; "
           "anyone on this network can then read and change the data of a move";
  }
  if (!insecure_) return {};
  return "--insecure: peers are not authenticated and nothing is encrypted; everyone on this "
         "network can read and change what is moved";
}

}  // namespace ppmr
