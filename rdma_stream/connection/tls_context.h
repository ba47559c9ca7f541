// The TLS configuration of this node: its shared key or its certificate, and the allowed peers.
//
// TLS 1.3 only; both sides authenticate. Every connection has its own keys (an ephemeral
// Diffie-Hellman exchange, also with a shared key), so a key that is stolen later does not decrypt
// recorded traffic. No resumption, tickets, early data or compression.
//
// With a shared key, the source shows a key that is derived from it for one node and one role, as
// RFC 9257, 5.1 advises. The name on the wire contains the node and the role. So a handshake is
// useless in another role, and a node recognises its own handshake when an attacker reflects it
// (RFC 9257, 4.1). OpenSSL has no importer of RFC 9258, so the derivation is an HMAC.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/locked.h"
#include "rdma_stream/connection/connection.h"
#include "rdma_stream/connection/credentials.h"
#include "rdma_stream/connection/secret_file.h"

namespace ppmr {

class TlsConnection;

// Threads: any.
class TlsContext {
 public:
  // Shows the first key and accepts all keys. If `allowed_peers` is empty, every holder of a key is
  // allowed.
  static Result<std::shared_ptr<const TlsContext>> with_shared_keys(
      std::vector<SharedKey> keys, std::string node_name,
      std::vector<std::string> allowed_peers = {});
  // A peer is allowed if its certificate is valid, is not in the revocation list, and has one of
  // `allowed_peers` as a DNS name. Errors: EPERM when other users can read the private key, EINVAL
  // for invalid contents.
  static Result<std::shared_ptr<const TlsContext>> with_certificate(
      const CertificateFiles& files, std::vector<std::string> allowed_peers,
      const std::string& revocation_list = "", const OpenFile& open = open_to_read);

  // Returns when the first of this node's certificates, authorities and revocation lists ends, in
  // seconds since 1970. Returns nullopt for shared keys, which have no end.
  std::optional<int64_t> ends_at_s() const { return ends_at_s_; }

  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // The two sides of the handshake, over a new connection. Each takes at most `timeout`, even with
  // a very slow peer. Errors: EACCES when either side refuses the other (a refused peer receives
  // the reason as far as TLS allows); EPROTO when the peer does not use TLS; those of
  // Connection::read.
  Result<std::unique_ptr<Connection>> connect(std::shared_ptr<Connection> connection, PeerRole role,
                                              std::chrono::milliseconds timeout) const;
  Result<std::unique_ptr<Connection>> accept(std::shared_ptr<Connection> connection,
                                             std::chrono::milliseconds timeout) const;

 private:
  using ContextPointer = std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)>;

  TlsContext();
  void note_end(const ASN1_TIME* end);
  Status use_certificate(const CertificateFiles& files, const OpenFile& open);
  Status use_authority(const std::string& path, const OpenFile& open);
  Status use_revocation_list(const std::string& path, const OpenFile& open);
  static int use_key(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                     size_t* identity_length, SSL_SESSION** session);
  static int find_key(SSL* ssl, const unsigned char* identity, size_t identity_length,
                      SSL_SESSION** session);
  static int check_certificate(int valid, X509_STORE_CTX* store);
  Result<PeerIdentity> identify(TlsConnection& tls) const;
  Status check_key_holder(const PeerIdentity& holder, const TlsConnection& tls) const;
  Result<std::unique_ptr<Connection>> admit(std::unique_ptr<TlsConnection> tls) const;

  const ContextPointer context_;
  std::list<Locked<SharedKey>> keys_;  // empty: this node uses certificates
  std::string node_name_;              // name of this node, with shared keys
  std::vector<std::string> allowed_peers_;
  std::optional<int64_t> ends_at_s_;
};

}  // namespace ppmr
