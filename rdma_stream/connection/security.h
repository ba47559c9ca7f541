// How a daemon or a command connects to other nodes: with a shared key, with certificates, or in
// plain text where that is allowed. The options of the command line select one of these
// (mount/command_line/credential_options.h). Security creates the connectors and listeners.
#pragma once

#include <memory>
#include <string>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/credentials.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

class TlsContext;

// Threads: any. Connectors and listeners may outlive their Security object.
class Security {
 public:
  // Reads the files. Errors: those of read_key_file() and TlsContext; EINVAL for contradictory or
  // incomplete credentials.
  static Result<std::shared_ptr<const Security>> load(const Credentials& credentials);
  static Result<std::shared_ptr<const Security>> with_shared_key(const SharedKey& key);
  // No credentials: plain text, loopback only, between root and one user.
  static std::shared_ptr<const Security> none();

  // Errors: those of tcp_connector() and tcp_listener(). Without credentials, addresses other than
  // loopback are refused with EPERM unless --insecure is given, and so are other users on loopback
  // (peer_user.h).
  Result<std::unique_ptr<Connector>> connector(const std::string& address) const;
  Result<std::unique_ptr<Listener>> listener(const std::string& address) const;
  // Makes a connector or listener of any network use these credentials.
  std::unique_ptr<Connector> secure(std::unique_ptr<Connector> plain) const;
  std::unique_ptr<Listener> secure(std::unique_ptr<Listener> plain) const;

  bool authenticates() const { return tls_ != nullptr; }
  // A warning to log when a daemon starts; may be empty.
  std::string warning() const;

 private:
  Security(std::shared_ptr<const TlsContext> tls, bool insecure, bool trusted_fabric)
      : tls_(std::move(tls)), insecure_(insecure), trusted_fabric_(trusted_fabric) {}

  const std::shared_ptr<const TlsContext> tls_;  // null: plain text
  const bool insecure_;
  const bool trusted_fabric_;
};

}  // namespace ppmr
