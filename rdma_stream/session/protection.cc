#include "rdma_stream/session/protection.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "base/crc32c.h"

namespace ppmr {
namespace {

// The label names the use of the exported secret (RFC 5705, 4; RFC 8446, 7.5).
constexpr std::string_view kExportLabel = "EXPORTER-ppmr-chunks";

wire::ChunkCheck check_of(uint32_t crc) {
  wire::ChunkCheck check;
  for (size_t i = 0; i < sizeof crc; ++i) check.code[i] = static_cast<uint8_t>(crc >> (8 * i));
  return check;
}

std::string explain(const PeerIdentity& peer, wire::Protection chosen, bool trusted_fabric) {
  if (!peer.authenticated()) return "the peers do not authenticate";
  if (chosen == wire::Protection::kChecksum) return "both sides have --trusted-fabric";
  return trusted_fabric ? "the other side does not have --trusted-fabric"
                        : "the peers authenticate";
}

}  // namespace

const char* to_string(wire::Protection protection) {
  return protection == wire::Protection::kAes256Gcm ? "aes-256-gcm" : "none";
}

wire::Protection least_protection(const PeerIdentity& peer, bool trusted_fabric) {
  return peer.authenticated() && !trusted_fabric ? wire::Protection::kAes256Gcm
                                                 : wire::Protection::kChecksum;
}

wire::Protection choose_protection(const PeerIdentity& source, wire::Protection source_least,
                                   bool trusted_fabric) {
  if (!source.authenticated()) return wire::Protection::kChecksum;
  return source_least == wire::Protection::kChecksum && trusted_fabric
             ? wire::Protection::kChecksum
             : wire::Protection::kAes256Gcm;
}

Result<std::shared_ptr<ChunkProtection>> ChunkProtection::create(Connection& connection,
                                                                 const wire::Token& session,
                                                                 const wire::Token& token,
                                                                 wire::Protection chosen,
                                                                 bool trusted_fabric) {
  const PeerIdentity peer = connection.peer_identity();
  if (chosen != wire::Protection::kAes256Gcm && chosen != wire::Protection::kChecksum) {
    return failure(EPROTO, "the peer chose an unknown protection of the data");
  }
  if (chosen < least_protection(peer, trusted_fabric)) {
    return failure(EACCES, "the peer at " + connection.peer() +
                               " does not encrypt data, and this node " +
                               "requires it (--trusted-fabric is not given)");
  }
  std::shared_ptr<ChunkProtection> made(new ChunkProtection(explain(peer, chosen, trusted_fabric)));
  if (chosen == wire::Protection::kChecksum) return made;
  std::array<uint8_t, sizeof(wire::Token) * 2> context;
  std::copy(token.begin(), token.end(), std::copy(session.begin(), session.end(), context.begin()));
  ChunkCipher::Secret secret;
  const Status exported = connection.export_secret(kExportLabel, context, secret);
  if (exported) made->cipher_.emplace(secret, ChunkCipher::Options{.session = session});
  ::OPENSSL_cleanse(secret.data(), secret.size());
  if (!exported) return failure(exported.error());
  return made;
}

Result<wire::ChunkCheck> ChunkProtection::protect(const ChunkPlace& place,
                                                  std::span<const std::byte> from,
                                                  std::span<std::byte> to) {
  if (cipher_) return cipher_->encrypt(place, from, to);
  if (from.data() != to.data()) std::copy(from.begin(), from.end(), to.begin());
  return check_of(crc32c(from));
}

Status ChunkProtection::verify(const ChunkPlace& place, const wire::ChunkCheck& check,
                               std::span<const Landing::Piece> pieces, std::byte* to) {
  if (cipher_) return cipher_->decrypt(place, check, pieces, to);
  uint32_t crc = 0;
  for (const Landing::Piece& piece : pieces) {
    crc = crc32c({piece.data, piece.length}, crc);
    if (to != nullptr) to = std::copy_n(piece.data, piece.length, to);
  }
  if (check_of(crc) == check) return {};
  return failure(EIO, "checksum mismatch");
}

}  // namespace ppmr
