// Selects how a daemon or a command connects to other nodes: with a shared key, with certificates,
// or in plain text where that is allowed. The options of the command line select one of these ways
// (daemon/command_line/credential_options.h). Security creates the connectors and listeners.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/open_file.h"
#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/credentials.h"
#include "rdma_stream/connection/secret_file.h"
#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {

class TlsContext;

// Makes the paths absolute, because a daemon reads its files again after it has left its working
// directory.
Credentials with_absolute_paths(Credentials credentials);
// Returns the absolute paths of the files that Security reads.
std::vector<std::string> credential_files(const Credentials& credentials);

// The TLS configuration that the next handshake uses; null: plain text. Threads: any.
class CurrentTls {
 public:
  explicit CurrentTls(std::shared_ptr<const TlsContext> tls) : tls_(std::move(tls)) {}
  std::shared_ptr<const TlsContext> get() const {
    MutexLock lock(mutex_);
    return tls_;
  }
  void set(std::shared_ptr<const TlsContext> tls) {
    MutexLock lock(mutex_);
    tls_ = std::move(tls);
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const TlsContext> tls_ PPMR_GUARDED_BY(mutex_);
};

// Threads: any. Connectors and listeners may live longer than their Security object.
class Security {
 public:
  // Reads the files. Errors: those of read_key_file() and TlsContext; EINVAL for contradictory or
  // incomplete credentials.
  static Result<std::shared_ptr<Security>> load(const Credentials& credentials);
  // Returns the security of a node with this name and one key.
  static Result<std::shared_ptr<const Security>> with_shared_key(
      const SharedKey& key, const std::string& node_name = "node");
  // Returns a Security without credentials: plain text, loopback only, between root and one user.
  static std::shared_ptr<const Security> none();

  // Reads the files again. Later handshakes use the new contents, also the handshakes of existing
  // connectors and listeners. Open connections stay. After an error the old contents stay in use.
  // Errors: those of load().
  Status reload(const OpenFile& open = open_to_read);

  // Makes a connector or a listener. Errors: those of tcp_connector() and tcp_listener(). Without
  // credentials and without --insecure, addresses other than loopback fail with EPERM, and
  // connections to and from other users on loopback fail with EACCES (peer_user.h). `dial`: see
  // tcp_connector(). While a target refuses because it is busy (acceptor.h), connect() tries again
  // until its timeout, and then returns EBUSY.
  Result<std::unique_ptr<Connector>> connector(const std::string& address, PeerRole role,
                                               Dial dial = {}) const;
  // Returns which addresses these credentials allow.
  TcpReach reach() const;
  Result<std::unique_ptr<Listener>> listener(const std::string& address) const;
  // Makes a connector or listener of any kind of network use these credentials.
  std::unique_ptr<Connector> secure(std::unique_ptr<Connector> plain,
                                    PeerRole role = PeerRole::kSource) const;
  std::unique_ptr<Listener> secure(std::unique_ptr<Listener> plain) const;

  bool authenticates() const { return tls_->get() != nullptr; }
  // Returns when the first of the certificates and revocation lists of this node ends, in seconds
  // since 1970. Returns nullopt for shared keys, which have no end.
  std::optional<int64_t> ends_at_s() const;
  // Returns a warning to log when a daemon starts; may be empty.
  std::string warning() const;

 private:
  Security(Credentials credentials, std::string node_name, std::shared_ptr<const TlsContext> tls)
      : credentials_(std::move(credentials)),
        node_name_(std::move(node_name)),
        tls_(std::make_shared<CurrentTls>(std::move(tls))) {}

  const Credentials credentials_;  // with absolute paths
  const std::string node_name_;
  const std::shared_ptr<CurrentTls> tls_;
};

}  // namespace ppmr
