#include "rdma_stream/connection/security.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/host_name.h"
#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/peer_user.h"
#include "rdma_stream/connection/tcp_connection.h"
#include "rdma_stream/connection/tls_context.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::byte kTlsHandshakeRecord{SSL3_RT_HANDSHAKE};
// Closing a socket with unread bytes resets the connection, and the peer may then lose the last
// message of this node. So this node reads from a refused connection for at most this long before
// it closes the connection.
constexpr milliseconds kHangUpPatience{500};
constexpr int kHangUpReadsMax = 64;
// The pause before the next attempt to connect to a busy target. A target drops a connection that
// sends no hello for ten times as long, if it needs the place for a newer one (acceptor.h).
constexpr milliseconds kBusyPause{100};

// Waits briefly until a refused peer has read the reason and closes the connection.
void await_hang_up(Connection& connection) {
  connection.set_read_timeout(kHangUpPatience);
  const auto deadline = Clock::now() + kHangUpPatience;
  std::array<std::byte, 4096> ignored;
  for (int i = 0; i < kHangUpReadsMax && Clock::now() < deadline; ++i) {
    if (!connection.read_some(ignored)) return;
  }
}

bool is_allowed(const std::vector<std::string>& allowed, const std::string& name) {
  return allowed.empty() || std::find(allowed.begin(), allowed.end(), name) != allowed.end();
}

class SecureConnector final : public Connector {
 public:
  SecureConnector(std::unique_ptr<Connector> plain, std::shared_ptr<const CurrentTls> tls,
                  PeerRole role, std::string node_name, std::string target_name,
                  std::vector<std::string> allowed_peers)
      : plain_(std::move(plain)),
        tls_(std::move(tls)),
        role_(role),
        node_name_(std::move(node_name)),
        target_name_(std::move(target_name)),
        allowed_peers_(std::move(allowed_peers)) {}

  Result<std::unique_ptr<Connection>> connect(milliseconds timeout) override {
    const auto deadline = Clock::now() + timeout;
    for (milliseconds left = timeout;;) {
      auto connection = connect_once(left);
      if (connection || connection.error().errno_value != EBUSY) return connection;
      std::this_thread::sleep_for(kBusyPause);
      left = std::chrono::floor<milliseconds>(deadline - Clock::now());
      if (left <= milliseconds(0)) return connection;
    }
  }
  Result<std::unique_ptr<Connection>> connect_data(milliseconds timeout) override {
    return plain_->connect_data(timeout);
  }
  const std::string& target() const override { return plain_->target(); }

  // A certificate has proved the name. With a shared key every holder may use any name, so this
  // check finds a wrong address, and a handshake that an attacker has reflected to this node.
  Status check_target(const Connection& connection, const std::string& name) const override {
    if (connection.peer_identity().method == PeerIdentity::Method::kCertificate) return {};
    const std::string who =
        "the target at " + target() + " is '" + readable(std::as_bytes(std::span(name))) + "'";
    if (!target_name_.empty() && name != target_name_) {
      return failure(EACCES, who + ", not '" + target_name_ + "' (--target-name)");
    }
    if (!is_allowed(allowed_peers_, name)) {
      return failure(EACCES, who + ", which is not allowed here (--allow-peer)");
    }
    if (name == node_name_ && !connection.is_local()) {
      return failure(EACCES, who +
                                 " like this node, but has another address: the connection was "
                                 "sent back here, or two nodes have the same host name (rename "
                                 "one with hostnamectl)");
    }
    return {};
  }

 private:
  Result<std::unique_ptr<Connection>> connect_once(milliseconds timeout) {
    auto connection = plain_->connect(timeout);
    const auto tls = tls_->get();
    if (!connection || tls == nullptr) return connection;
    return tls->connect(std::move(*connection), role_, timeout);
  }

  const std::unique_ptr<Connector> plain_;
  const std::shared_ptr<const CurrentTls> tls_;
  const PeerRole role_;
  const std::string node_name_;
  const std::string target_name_;
  const std::vector<std::string> allowed_peers_;
};

class SecureListener final : public Listener {
 public:
  SecureListener(std::unique_ptr<Listener> plain, std::shared_ptr<const CurrentTls> tls,
                 std::optional<PeerUsers> users = std::nullopt)
      : plain_(std::move(plain)), tls_(std::move(tls)), users_(std::move(users)) {}

  Result<std::unique_ptr<Connection>> accept() override { return plain_->accept(); }
  void close() override { plain_->close(); }
  const std::string& address() const override { return plain_->address(); }
  bool authenticates() const override { return tls_->get() != nullptr; }

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
    const auto tls = tls_->get();
    if (tls == nullptr) {
      const std::string text =
          "the source has a key or a certificate, but this target has none: start both with the "
          "same "
          "--key-file, or both without";
      send_reject(*connection, wire::RejectReason::kNotAuthenticated, text);
      await_hang_up(*connection);
      return failure(EACCES, text);
    }
    auto secured = tls->accept(connection, timeout);
    if (!secured) {
      await_hang_up(*connection);
      Error refused = secured.error();
      // The peer has sent bytes, so this is not the end of a silent connection.
      if (refused.errno_value == ECONNRESET) refused.errno_value = EPROTO;
      return failure(refused);
    }
    return std::shared_ptr<Connection>(std::move(*secured));
  }

 private:
  const std::unique_ptr<Listener> plain_;
  const std::shared_ptr<const CurrentTls> tls_;
  const std::optional<PeerUsers> users_;  // null: any user may be at the other end
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
  if (some_file && credentials.allowed_peers.empty() && credentials.target_name.empty()) {
    return failure(EINVAL,
                   "--allow-peer is missing: with certificates, name the peers that are allowed");
  }
  if (!some_file && credentials.key_file.empty() && !credentials.allowed_peers.empty()) {
    return failure(EINVAL,
                   "--allow-peer requires --tls-cert or --key-file: other peers have no names");
  }
  if (!some_file && !credentials.revocation_list.empty()) {
    return failure(EINVAL, "--crl requires --tls-cert: only certificates can be revoked");
  }
  if (!credentials.target_name.empty() &&
      !is_allowed(credentials.allowed_peers, credentials.target_name)) {
    return failure(EINVAL, "--target-name " + credentials.target_name +
                               ": not among the peers that --allow-peer allows");
  }
  return {};
}

// Returns null for plain text.
Result<std::shared_ptr<const TlsContext>> read_files(const Credentials& credentials,
                                                     const std::string& node_name,
                                                     const OpenFile& open) {
  if (!credentials.key_file.empty()) {
    auto keys = read_key_file(credentials.key_file, open);
    if (!keys) return failure(keys.error().errno_value, "--key-file: " + keys.error().message);
    return TlsContext::with_shared_keys(std::move(*keys), node_name, credentials.allowed_peers);
  }
  if (credentials.certificate.certificate.empty()) return std::shared_ptr<const TlsContext>();
  // A source connects to its target only.
  const std::vector<std::string> allowed = credentials.target_name.empty()
                                               ? credentials.allowed_peers
                                               : std::vector{credentials.target_name};
  return TlsContext::with_certificate(credentials.certificate, allowed, credentials.revocation_list,
                                      open);
}

}  // namespace

Credentials with_absolute_paths(Credentials credentials) {
  for (std::string* path : {&credentials.key_file, &credentials.certificate.certificate,
                            &credentials.certificate.private_key,
                            &credentials.certificate.authority, &credentials.revocation_list}) {
    if (!path->empty()) *path = std::filesystem::absolute(*path).string();
  }
  return credentials;
}

std::vector<std::string> credential_files(const Credentials& credentials) {
  const Credentials absolute = with_absolute_paths(credentials);
  std::vector<std::string> files;
  for (const std::string& path :
       {absolute.key_file, absolute.certificate.certificate, absolute.certificate.private_key,
        absolute.certificate.authority, absolute.revocation_list}) {
    if (!path.empty()) files.push_back(path);
  }
  return files;
}

Result<std::shared_ptr<Security>> Security::load(const Credentials& credentials) {
  if (auto checked = check(credentials); !checked) return failure(checked.error());
  const Credentials absolute = with_absolute_paths(credentials);
  const std::string node_name = host_name();
  auto tls = read_files(absolute, node_name, open_to_read);
  if (!tls) return failure(tls.error());
  return std::shared_ptr<Security>(new Security(absolute, node_name, std::move(*tls)));
}

Result<std::shared_ptr<const Security>> Security::with_shared_key(const SharedKey& key,
                                                                  const std::string& node_name) {
  auto tls = TlsContext::with_shared_keys({key}, node_name);
  if (!tls) return failure(tls.error());
  return std::shared_ptr<const Security>(new Security({}, node_name, std::move(*tls)));
}

std::shared_ptr<const Security> Security::none() {
  return std::shared_ptr<const Security>(new Security({}, host_name(), nullptr));
}

Status Security::reload(const OpenFile& open) {
  auto tls = read_files(credentials_, node_name_, open);
  if (!tls) return failure(tls.error());
  tls_->set(std::move(*tls));
  return {};
}

Result<std::unique_ptr<Connector>> Security::connector(const std::string& address, PeerRole role,
                                                       Dial dial) const {
  auto plain = tcp_connector(address, reach(), std::move(dial));
  if (!plain) return failure(plain.error());
  return secure(std::move(*plain), role);
}

std::optional<int64_t> Security::ends_at_s() const {
  const auto tls = tls_->get();
  return tls ? tls->ends_at_s() : std::nullopt;
}

TcpReach Security::reach() const {
  return authenticates() || credentials_.insecure ? TcpReach::kAnywhere : TcpReach::kLoopback;
}

Result<std::unique_ptr<Listener>> Security::listener(const std::string& address) const {
  auto plain = tcp_listener(address, reach());
  if (!plain) return failure(plain.error());
  if (reach() == TcpReach::kAnywhere) return secure(std::move(*plain));
  auto users = PeerUsers::open();
  if (!users) return failure(users.error());
  return std::make_unique<SecureListener>(std::move(*plain), tls_, std::move(*users));
}

std::unique_ptr<Connector> Security::secure(std::unique_ptr<Connector> plain, PeerRole role) const {
  return std::make_unique<SecureConnector>(std::move(plain), tls_, role, node_name_,
                                           credentials_.target_name, credentials_.allowed_peers);
}

std::unique_ptr<Listener> Security::secure(std::unique_ptr<Listener> plain) const {
  return std::make_unique<SecureListener>(std::move(plain), tls_);
}

std::string Security::warning() const {
  if (!credentials_.insecure && credentials_.trusted_fabric && authenticates()) {
    return "--trusted-fabric: data is not encrypted if the other side has this option, too; "
           "anyone on this network can then read and change the data of a move";
  }
  if (!credentials_.insecure) return {};
  return "--insecure: peers are not authenticated and nothing is encrypted; everyone on this "
         "network can read and change what is moved";
}

}  // namespace ppmr
