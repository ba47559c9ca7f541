// How a daemon or a command speaks with other nodes: with a shared key, with certificates, or in
// plain text where that is allowed. One of these is made from the command line
// (mount/command_line/credential_options.h), and connectors and listeners are made from it.
#pragma once

#include <memory>
#include <string>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/credentials.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

class TlsContext;

// Threads: any. Outlives nothing: what it makes keeps what it needs.
class Security {
 public:
  // Reads the files, once. Errors: those of read_key_file() and TlsContext; EINVAL for credentials
  // that contradict each other or are not complete.
  static Result<std::shared_ptr<const Security>> load(const Credentials& credentials);
  static Result<std::shared_ptr<const Security>> with_shared_key(const SharedKey& key);
  // Plain text on this machine alone.
  static std::shared_ptr<const Security> none();

  // Errors: as tcp_connector() and tcp_listener(). Without credentials addresses beyond this
  // machine are refused with EPERM, unless they are meant to be insecure.
  Result<std::unique_ptr<Connector>> connector(const std::string& address) const;
  Result<std::unique_ptr<Listener>> listener(const std::string& address) const;
  // The same over any other transport.
  std::unique_ptr<Connector> secure(std::unique_ptr<Connector> plain) const;
  std::unique_ptr<Listener> secure(std::unique_ptr<Listener> plain) const;

  bool authenticates() const { return tls_ != nullptr; }
  // What a person should be told when a daemon starts; empty when all is well.
  std::string warning() const;

 private:
  Security(std::shared_ptr<const TlsContext> tls, bool insecure)
      : tls_(std::move(tls)), insecure_(insecure) {}

  const std::shared_ptr<const TlsContext> tls_;  // null: plain text
  const bool insecure_;
};

}  // namespace ppmr
