#include "rdma_stream/connection/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>

#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/tls_connection.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// With a shared key both sides must agree on a hash in advance, so there is one suite.
constexpr const char* kSharedKeySuite = "TLS_AES_256_GCM_SHA384";
constexpr unsigned char kSharedKeySuiteId[] = {0x13, 0x02};  // RFC 8446, B.4
constexpr const char* kCertificateSuites =
    "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
constexpr unsigned char kSessionContext[] = {'p', 'p', 'm', 'r'};
// An example of a key's name on the wire: "ppmr-key-0123456789abcdef source node1".
constexpr std::string_view kKeyNamePrefix = "ppmr-key-";
constexpr std::string_view kHandshakeLabel = "ppmr handshake ";
constexpr size_t kNodeNameMaxBytes = 255;
constexpr size_t kNameShownMaxBytes = 128;
// The file's group may read the private key, as with Debian's ssl-cert, but may not change it.
constexpr mode_t kPrivateKeyDenied = S_IWGRP | S_IRWXO;

using CertificatePointer = std::unique_ptr<X509, decltype(&::X509_free)>;
using BioPointer = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using GeneralNames = std::unique_ptr<GENERAL_NAMES, decltype(&::GENERAL_NAMES_free)>;

std::string openssl_reason() {
  const char* text = ::ERR_reason_error_string(::ERR_peek_last_error());
  return text != nullptr ? text : "unknown reason";
}

// Returns a BIO that reads from `text`, which must live longer than the BIO.
BioPointer bio_of(const std::string& text) {
  return {::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &::BIO_free};
}

std::string text_of(const ASN1_STRING* string) {
  unsigned char* utf8 = nullptr;
  const int length = ::ASN1_STRING_to_UTF8(&utf8, string);
  if (length < 0) return {};
  std::string text(reinterpret_cast<const char*>(utf8), static_cast<size_t>(length));
  ::OPENSSL_free(utf8);
  return text;
}

// Returns the DNS names of a certificate exactly as the certificate holds them: a wildcard is not
// expanded, upper case stays, and an embedded zero byte does not end a name. The common name does
// not count (RFC 9525, 2).
std::vector<std::string> names_of(const X509* certificate) {
  std::vector<std::string> names;
  const GeneralNames alternatives(static_cast<GENERAL_NAMES*>(::X509_get_ext_d2i(
                                      certificate, NID_subject_alt_name, nullptr, nullptr)),
                                  &::GENERAL_NAMES_free);
  for (int i = 0; i < sk_GENERAL_NAME_num(alternatives.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(alternatives.get(), i);
    if (name->type == GEN_DNS) names.push_back(text_of(name->d.dNSName));
  }
  return names;
}

std::string shown_name(const X509* certificate) {
  const auto names = certificate != nullptr ? names_of(certificate) : std::vector<std::string>{};
  if (names.empty()) return "without a DNS name";
  const std::string name = names.front().substr(0, kNameShownMaxBytes);
  return "'" + readable(std::as_bytes(std::span(name))) + "'";
}

std::string shown(std::string_view text) {
  return readable(std::as_bytes(std::span(text.substr(0, kNameShownMaxBytes))));
}

bool is_allowed(const std::vector<std::string>& allowed, const std::string& name) {
  return std::find(allowed.begin(), allowed.end(), name) != allowed.end();
}

bool is_node_name(std::string_view name) {
  return !name.empty() && name.size() <= kNodeNameMaxBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
         });
}

// Parses the text after the key's id: " ROLE NODE". Returns nullopt for any other text.
std::optional<PeerIdentity> parse_key_holder(std::string_view text) {
  for (const PeerRole role : {PeerRole::kSource, PeerRole::kMigrate, PeerRole::kJobAgent}) {
    const std::string prefix = std::string(" ") + to_string(role) + " ";
    if (!text.starts_with(prefix)) continue;
    const std::string_view name = text.substr(prefix.size());
    if (!is_node_name(name)) return std::nullopt;
    return PeerIdentity{PeerIdentity::Method::kSharedKey, std::string(name), role};
  }
  return std::nullopt;
}

const char* remedy_of(int verify_error) {
  switch (verify_error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_REVOKED:
      return " (issue a new one)";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return " (compare the clocks)";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
      return " (the file of --crl has no list of this authority)";
    case X509_V_ERR_CRL_HAS_EXPIRED:
      return " (make a new list, replace the file of --crl, and send SIGHUP)";
    case X509_V_ERR_INVALID_PURPOSE:
      return " (its extended key usage: a node that connects needs clientAuth, one that listens "
             "serverAuth)";
    default:
      return "";
  }
}

TlsConnection::Notes& notes_of(SSL* ssl) {
  return *static_cast<TlsConnection::Notes*>(SSL_get_app_data(ssl));
}

}  // namespace

// ---- Making a context --------------------------------------------------------------------------

TlsContext::TlsContext() : context_(::SSL_CTX_new(::TLS_method()), &::SSL_CTX_free) {
  SSL_CTX* context = context_.get();
  ::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  ::SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  ::SSL_CTX_set_options(context,
                        SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  // Send only what the certificate file contains; the peer has the authority's certificate.
  ::SSL_CTX_set_mode(context, SSL_MODE_NO_AUTO_CHAIN);
  ::SSL_CTX_set_num_tickets(context, 0);
  ::SSL_CTX_set_max_early_data(context, 0);
  ::SSL_CTX_set_recv_max_early_data(context, 0);
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // OpenSSL treats a pre-shared key as a session to resume, and a session requires a context id.
  ::SSL_CTX_set_session_id_context(context, kSessionContext, sizeof kSessionContext);
  // With a shared key no certificate is requested. If the peer sends one anyway, its verification
  // fails, because there is no authority.
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       &check_certificate);
  SSL_CTX_set_app_data(context, this);
}

Result<std::shared_ptr<const TlsContext>> TlsContext::with_shared_keys(
    std::vector<SharedKey> keys, std::string node_name, std::vector<std::string> allowed_peers) {
  std::shared_ptr<TlsContext> made(new TlsContext());
  for (SharedKey& key : keys) {
    made->keys_.emplace_back(key);
    ::OPENSSL_cleanse(key.data(), key.size());
  }
  made->node_name_ = std::move(node_name);
  made->allowed_peers_ = std::move(allowed_peers);
  if (!is_node_name(made->node_name_)) {
    return failure(EINVAL, "the host name '" + shown(made->node_name_) +
                               "' cannot be part of an identity: give this node a name of letters, "
                               "digits, dots and dashes (hostnamectl)");
  }
  SSL_CTX* context = made->context_.get();
  if (::SSL_CTX_set_ciphersuites(context, kSharedKeySuite) != 1) {
    return failure(EINVAL, "TLS with a shared key: " + openssl_reason());
  }
  ::SSL_CTX_set_psk_use_session_callback(context, &use_key);
  ::SSL_CTX_set_psk_find_session_callback(context, &find_key);
  return made;
}

Result<std::shared_ptr<const TlsContext>> TlsContext::with_certificate(
    const CertificateFiles& files, std::vector<std::string> allowed_peers,
    const std::string& revocation_list, const OpenFile& open) {
  ::ERR_clear_error();
  std::shared_ptr<TlsContext> made(new TlsContext());
  made->allowed_peers_ = std::move(allowed_peers);
  ::SSL_CTX_set_ciphersuites(made->context_.get(), kCertificateSuites);
  Status used = made->use_certificate(files, open);
  if (used) used = made->use_authority(files.authority, open);
  if (used && !revocation_list.empty()) used = made->use_revocation_list(revocation_list, open);
  ::ERR_clear_error();  // the end of a PEM file counts as an error
  if (!used) return failure(used.error());
  return made;
}

void TlsContext::note_end(const ASN1_TIME* end) {
  tm parts{};
  if (end == nullptr || ::ASN1_TIME_to_tm(end, &parts) != 1) return;
  const int64_t end_s = ::timegm(&parts);
  ends_at_s_ = std::min(ends_at_s_.value_or(end_s), end_s);
}

Status TlsContext::use_certificate(const CertificateFiles& files, const OpenFile& open) {
  SSL_CTX* context = context_.get();
  const auto certificate = read_public_file(files.certificate, open);
  if (!certificate) return failure(certificate.error());
  const BioPointer chain = bio_of(*certificate);
  const CertificatePointer own(::PEM_read_bio_X509_AUX(chain.get(), nullptr, nullptr, nullptr),
                               &::X509_free);
  if (!own || ::SSL_CTX_use_certificate(context, own.get()) != 1) {
    return failure(EINVAL, "certificate " + files.certificate + ": " + openssl_reason());
  }
  note_end(::X509_get0_notAfter(own.get()));
  while (X509* next = ::PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)) {
    note_end(::X509_get0_notAfter(next));
    if (::SSL_CTX_add0_chain_cert(context, next) != 1) ::X509_free(next);
  }
  ::ERR_clear_error();
  auto pem = read_secret_file(files.private_key, kPrivateKeyDenied, open);
  if (!pem) return failure(pem.error());
  // Passes an empty passphrase; otherwise OpenSSL would ask for one at the terminal.
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(
      ::PEM_read_bio_PrivateKey(bio_of(*pem).get(), nullptr, nullptr, const_cast<char*>("")),
      &::EVP_PKEY_free);
  ::OPENSSL_cleanse(pem->data(), pem->size());
  if (!key) {
    return failure(EINVAL, "private key " + files.private_key + ": " + openssl_reason() +
                               " (it must be PEM without a passphrase)");
  }
  if (::SSL_CTX_use_PrivateKey(context, key.get()) != 1 ||
      ::SSL_CTX_check_private_key(context) != 1) {
    return failure(EINVAL, "private key " + files.private_key +
                               " does not belong to the certificate " + files.certificate + ": " +
                               openssl_reason());
  }
  return {};
}

Status TlsContext::use_authority(const std::string& path, const OpenFile& open) {
  const auto text = read_public_file(path, open);
  if (!text) return failure(text.error());
  X509_STORE* store = ::SSL_CTX_get_cert_store(context_.get());
  const BioPointer bio = bio_of(*text);
  size_t count = 0;
  while (X509* next = ::PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    const CertificatePointer authority(next, &::X509_free);
    note_end(::X509_get0_notAfter(next));
    if (::X509_STORE_add_cert(store, authority.get()) == 1) ++count;
  }
  if (count > 0) return {};
  return failure(EINVAL, "authority " + path + ": " + openssl_reason());
}

Status TlsContext::use_revocation_list(const std::string& path, const OpenFile& open) {
  const auto text = read_public_file(path, open);
  if (!text) {
    return failure(text.error().errno_value,
                   "revocation list " + path + ": " + text.error().message);
  }
  X509_STORE* store = ::SSL_CTX_get_cert_store(context_.get());
  const BioPointer bio = bio_of(*text);
  size_t count = 0;
  while (X509_CRL* next = ::PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr)) {
    note_end(::X509_CRL_get0_nextUpdate(next));
    if (::X509_STORE_add_crl(store, next) == 1) ++count;
    ::X509_CRL_free(next);
  }
  if (count == 0) {
    return failure(EINVAL, "revocation list " + path + ": " + openssl_reason() +
                               " (it must be PEM, see `openssl ca -gencrl`)");
  }
  ::X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
  return {};
}

// ---- OpenSSL's callbacks -----------------------------------------------------------------------

namespace {

// Returns a session with the key that is bound to `name`.
SSL_SESSION* key_session(SSL* ssl, const SharedKey& shared, std::string_view name) {
  SharedKey key = derive_key(shared, std::string(kHandshakeLabel) + std::string(name));
  SSL_SESSION* session = ::SSL_SESSION_new();
  const SSL_CIPHER* suite = ::SSL_CIPHER_find(ssl, kSharedKeySuiteId);
  const bool holds_key =
      session != nullptr && ::SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1;
  ::OPENSSL_cleanse(key.data(), key.size());
  if (holds_key && suite != nullptr && ::SSL_SESSION_set_cipher(session, suite) == 1 &&
      ::SSL_SESSION_set1_id_context(session, kSessionContext, sizeof kSessionContext) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  ::SSL_SESSION_free(session);
  return nullptr;
}

}  // namespace

// OpenSSL calls this at the source, to get the shared key.
int TlsContext::use_key(SSL* ssl, const EVP_MD*, const unsigned char** identity,
                        size_t* identity_length, SSL_SESSION** session) {
  const auto& self = *static_cast<const TlsContext*>(SSL_CTX_get_app_data(::SSL_get_SSL_CTX(ssl)));
  const std::string& name = notes_of(ssl).key_name;
  *session = key_session(ssl, *self.keys_.front(), name);
  if (*session == nullptr) return 0;
  *identity = reinterpret_cast<const unsigned char*>(name.data());
  *identity_length = name.size();
  return 1;
}

// OpenSSL calls this at the target, to look up the key that the source names.
int TlsContext::find_key(SSL* ssl, const unsigned char* identity, size_t identity_length,
                         SSL_SESSION** session) {
  const auto& self = *static_cast<const TlsContext*>(SSL_CTX_get_app_data(::SSL_get_SSL_CTX(ssl)));
  const std::string_view name(reinterpret_cast<const char*>(identity), identity_length);
  TlsConnection::Notes& notes = notes_of(ssl);
  *session = nullptr;
  std::string own_names;
  for (const Locked<SharedKey>& key : self.keys_) {
    const std::string own_name = std::string(kKeyNamePrefix) + key_id(*key);
    own_names += (own_names.empty() ? "" : ", ") + own_name;
    if (name.substr(0, own_name.size()) != own_name) continue;
    auto holder = parse_key_holder(name.substr(own_name.size()));
    if (!holder) {
      notes.reason = "the source names its key '" + shown(name) +
                     "', which does not say its role and node: install the same ppmr on both nodes";
      return 1;  // OpenSSL continues without a key; the handshake fails
    }
    notes.key_holder = std::move(*holder);
    *session = key_session(ssl, *key, name);
    return *session != nullptr ? 1 : 0;
  }
  notes.reason = "the source has another key (" + shown(name) + ") than the target (" + own_names +
                 "): use the same --key-file on both sides, and send SIGHUP to a daemon whose file "
                 "has changed";
  return 1;
}

int TlsContext::check_certificate(int valid, X509_STORE_CTX* store) {
  if (valid == 1) return 1;
  auto* ssl = static_cast<SSL*>(
      ::X509_STORE_CTX_get_ex_data(store, ::SSL_get_ex_data_X509_STORE_CTX_idx()));
  const auto& self = *static_cast<const TlsContext*>(SSL_CTX_get_app_data(::SSL_get_SSL_CTX(ssl)));
  const int error = ::X509_STORE_CTX_get_error(store);
  notes_of(ssl).reason =
      !self.keys_.empty()
          ? "the peer has a certificate, this node a shared key: use the same on both sides"
          : "certificate " + shown_name(::X509_STORE_CTX_get_current_cert(store)) +
                " of the peer: " + ::X509_verify_cert_error_string(error) + remedy_of(error);
  return 0;
}

// ---- Handshakes --------------------------------------------------------------------------------

// Returns the authenticated peer; called after the handshake.
Result<PeerIdentity> TlsContext::identify(TlsConnection& tls) const {
  SSL* ssl = tls.ssl();
  const std::string& peer = tls.peer();
  if (::SSL_version(ssl) != TLS1_3_VERSION) return failure(EACCES, peer + " does not use TLS 1.3");
  PeerIdentity identity;
  if (!keys_.empty()) {
    // OpenSSL reports the use of a pre-shared key as the resumption of a TLS session.
    if (::SSL_session_reused(ssl) != 1)
      return failure(EACCES, peer + " did not use the shared key");
    identity = tls.notes().key_holder;  // empty for a target, which names itself in its welcome
    identity.method = PeerIdentity::Method::kSharedKey;
    if (::SSL_is_server(ssl) == 1) {
      if (Status checked = check_key_holder(identity, tls); !checked) {
        return failure(checked.error());
      }
    }
    return identity;
  }
  const CertificatePointer certificate(::SSL_get1_peer_certificate(ssl), &::X509_free);
  if (!certificate || ::SSL_get_verify_result(ssl) != X509_V_OK) {
    return failure(EACCES, peer + " did not authenticate");
  }
  const std::vector<std::string> names = names_of(certificate.get());
  if (names.empty()) {
    return failure(EACCES, "the certificate of " + peer +
                               " has no DNS name; the common name does not count: issue it with "
                               "-addext subjectAltName=DNS:NAME");
  }
  for (const std::string& name : names) {
    if (!is_allowed(allowed_peers_, name)) continue;
    identity.method = PeerIdentity::Method::kCertificate;
    identity.name = name;
    return identity;
  }
  return failure(EACCES, "certificate " + shown_name(certificate.get()) + " of " + peer +
                             " is valid, but none of its names is allowed here (--allow-peer)");
}

// The holder of a key must have the name of another node, or of this node if the connection does
// not leave it. Otherwise an attacker has sent this node's own handshake back.
Status TlsContext::check_key_holder(const PeerIdentity& holder, const TlsConnection& tls) const {
  if (holder.name == node_name_ && !tls.is_local()) {
    return failure(EACCES, tls.peer() + " has the name of this node, " + node_name_ +
                               ", but another address: its handshake was sent back here, or two "
                               "nodes have the same host name (rename one with hostnamectl)");
  }
  if (!allowed_peers_.empty() && !is_allowed(allowed_peers_, holder.name)) {
    return failure(EACCES, "the node '" + holder.name + "' at " + tls.peer() +
                               " has the key, but is not allowed here (--allow-peer)");
  }
  return {};
}

// Returns the connection if its peer is allowed. Both sides call this after the handshake.
Result<std::unique_ptr<Connection>> TlsContext::admit(std::unique_ptr<TlsConnection> tls) const {
  auto identity = identify(*tls);
  if (!identity) {
    send_reject(*tls, wire::RejectReason::kNotAuthenticated, identity.error().message);
    return failure(identity.error());
  }
  tls->set_peer_identity(std::move(*identity));
  return tls;
}

Result<std::unique_ptr<Connection>> TlsContext::connect(std::shared_ptr<Connection> connection,
                                                        PeerRole role, milliseconds timeout) const {
  TlsConnection::SslPointer ssl(::SSL_new(context_.get()), &::SSL_free);
  if (!ssl) return failure(ENOMEM, "TLS with " + connection->peer() + ": " + openssl_reason());
  ::SSL_set_connect_state(ssl.get());
  auto tls = std::make_unique<TlsConnection>(std::move(ssl), std::move(connection));
  if (!keys_.empty()) {
    tls->notes().key_name = std::string(kKeyNamePrefix) + key_id(*keys_.front()) + " " +
                            to_string(role) + " " + node_name_;
  }
  if (auto agreed = tls->shake_hands(timeout); !agreed) return failure(agreed.error());
  return admit(std::move(tls));
}

Result<std::unique_ptr<Connection>> TlsContext::accept(std::shared_ptr<Connection> connection,
                                                       milliseconds timeout) const {
  TlsConnection::SslPointer ssl(::SSL_new(context_.get()), &::SSL_free);
  if (!ssl) return failure(ENOMEM, "TLS with " + connection->peer() + ": " + openssl_reason());
  ::SSL_set_accept_state(ssl.get());
  auto tls = std::make_unique<TlsConnection>(std::move(ssl), connection);
  if (auto agreed = tls->shake_hands(timeout); !agreed) {
    if (!tls->sent_something()) {
      send_reject(*connection, wire::RejectReason::kNotAuthenticated, agreed.error().message);
    }
    return failure(agreed.error());
  }
  return admit(std::move(tls));
}

}  // namespace ppmr
