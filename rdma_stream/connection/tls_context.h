// What TLS needs to know of this node: its shared key or its certificate, and whom to let in.
//
// TLS 1.3 alone, both sides prove who they are, and every connection has keys of its own (an
// ephemeral Diffie-Hellman exchange also with a shared key), so that a key which is stolen later
// opens no recording. No resumption, no tickets, no early data, no compression.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/credentials.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

class TlsConnection;

// Threads: any.
class TlsContext {
 public:
  static Result<std::shared_ptr<const TlsContext>> with_shared_key(const SharedKey& key);
  // Peers are let in whose certificate is valid *and* has one of `allowed_peers` as a DNS name or
  // as its common name. Errors: EPERM when others can read the private key, EINVAL for contents.
  static Result<std::shared_ptr<const TlsContext>> with_certificate(
      const CertificateFiles& files, std::vector<std::string> allowed_peers);
  ~TlsContext();

  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Both sides of the handshake, over a connection on which nothing was said yet; each takes
  // `timeout` at most, also with a peer whose bytes trickle. Errors: EACCES when either side
  // refuses the other, which has been told then, as far as TLS allows; EPROTO when the peer does
  // not speak TLS; those of Connection::read.
  Result<std::unique_ptr<Connection>> connect(std::shared_ptr<Connection> connection,
                                              std::chrono::milliseconds timeout) const;
  Result<std::unique_ptr<Connection>> accept(std::shared_ptr<Connection> connection,
                                             std::chrono::milliseconds timeout) const;

 private:
  using ContextPointer = std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)>;

  TlsContext();
  static int use_key(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                     size_t* identity_length, SSL_SESSION** session);
  static int find_key(SSL* ssl, const unsigned char* identity, size_t identity_length,
                      SSL_SESSION** session);
  static int check_certificate(int valid, X509_STORE_CTX* store);
  SSL_SESSION* key_session(SSL* ssl) const;
  Result<PeerIdentity> identify(SSL* ssl, const std::string& peer) const;
  Result<std::unique_ptr<Connection>> admit(std::unique_ptr<TlsConnection> tls) const;

  const ContextPointer context_;
  bool shares_key_ = false;
  SharedKey key_{};
  std::string key_name_;  // what the peers call the key on the wire
  std::vector<std::string> allowed_peers_;
};

}  // namespace ppmr
