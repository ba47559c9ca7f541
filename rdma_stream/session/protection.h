// Decides how a session protects the bytes of its chunks: by encryption if the peers authenticate,
// else by a checksum. --trusted-fabric on both sides also selects the checksum. If only one side
// has this option, the session encrypts: neither side can lower the protection of the other.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "rdma_stream/connection/connection.h"
#include "rdma_stream/session/chunk_cipher.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

// Returns the name that `ppmr status` shows: "aes-256-gcm", "none".
const char* to_string(wire::Protection protection);

// Returns the least protection that a side accepts.
wire::Protection least_protection(const PeerIdentity& peer, bool trusted_fabric);
// Returns the target's choice. `source_least` comes from the source.
wire::Protection choose_protection(const PeerIdentity& source, wire::Protection source_least,
                                   bool trusted_fabric);

// Threads: any.
class ChunkProtection {
 public:
  // `connection` is the connection that opened the session; `chosen` comes from the target's
  // welcome. Errors: EACCES if `chosen` is less than this side accepts; those of
  // Connection::export_secret.
  static Result<std::shared_ptr<ChunkProtection>> create(Connection& connection,
                                                         const wire::Token& session,
                                                         const wire::Token& token,
                                                         wire::Protection chosen,
                                                         bool trusted_fabric);

  // Encrypts `from` into `to`, or copies it and computes the checksum. Both have the same length,
  // and are the same memory or memory that does not overlap. Errors: those of
  // ChunkCipher::encrypt().
  Result<wire::ChunkCheck> protect(const ChunkPlace& place, std::span<const std::byte> from,
                                   std::span<std::byte> to);
  // Decrypts the pieces in place, or compares their checksum. If `to` is not null, writes the bytes
  // to `to` instead. Errors: EIO for wrong bytes.
  Status verify(const ChunkPlace& place, const wire::ChunkCheck& check,
                std::span<const Landing::Piece> pieces, std::byte* to = nullptr);

  wire::Protection kind() const {
    return cipher_ ? wire::Protection::kAes256Gcm : wire::Protection::kChecksum;
  }
  const std::string& why() const { return why_; }  // the reason for this kind

 private:
  explicit ChunkProtection(std::string why) : why_(std::move(why)) {}

  const std::string why_;
  std::optional<ChunkCipher> cipher_;  // empty with kChecksum; constant after create()
};

}  // namespace ppmr
