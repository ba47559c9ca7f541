#include "rdma_stream/session/chunk_cipher.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <cassert>
#include <optional>
#include <string>

namespace ppmr {
namespace {

// Far below overflow, so that callers after the last number also get an error.
constexpr uint64_t kNumbersMax = uint64_t{1} << 63;
constexpr char kKeyLabel[] = "ppmr chunks, source to target, epoch ";
constexpr std::array<char, 12> kChunkLabel = {'p', 'p', 'm', 'r', ' ', 'c',
                                              'h', 'u', 'n', 'k', ' ', '3'};

using Key = std::array<uint8_t, AesGcm::kKeyBytes>;

struct AssociatedData {
  std::array<char, 12> label = kChunkLabel;
  wire::Token session{};
  uint64_t epoch = 0;
  uint64_t number = 0;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
  wire::Compression compression = wire::Compression::kNone;
  uint32_t slot_length = 0;
  template <typename F>
  void fields(F&& field) {
    field(label), field(session), field(epoch), field(number), field(node), field(offset),
        field(length), field(compression), field(slot_length);
  }
};

// HKDF-SHA256 without salt: the secret is uniformly random already (RFC 5869, 3.1).
Status derive_key(const ChunkCipher::Secret& secret, uint64_t epoch, Key& key) {
  std::array<uint8_t, sizeof kKeyLabel - 1 + sizeof epoch> info;
  std::copy_n(kKeyLabel, sizeof kKeyLabel - 1, info.begin());
  for (size_t i = 0; i < sizeof epoch; ++i) {
    info[sizeof kKeyLabel - 1 + i] = static_cast<uint8_t>(epoch >> (8 * i));
  }
  ::ERR_clear_error();
  const std::unique_ptr<EVP_KDF, decltype(&::EVP_KDF_free)> kdf(
      ::EVP_KDF_fetch(nullptr, "HKDF", nullptr), &::EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&::EVP_KDF_CTX_free)> context(
      kdf ? ::EVP_KDF_CTX_new(kdf.get()) : nullptr, &::EVP_KDF_CTX_free);
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      ::OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<uint8_t*>(secret.data()),
                                          secret.size()),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      ::OSSL_PARAM_construct_end()};
  if (!context || ::EVP_KDF_derive(context.get(), key.data(), key.size(), parameters) != 1) {
    const char* const reason = ::ERR_reason_error_string(::ERR_peek_error());
    return failure(EIO, std::string("derive the key of a session: ") +
                            (reason != nullptr ? reason : "OpenSSL gives no reason"));
  }
  return {};
}

}  // namespace

struct ChunkCipher::Context {
  uint64_t epoch = 0;  // epoch of the key in this context
  std::optional<AesGcm> cipher;
};

ChunkCipher::ChunkCipher(const Secret& secret, Options options)
    : secret_(secret), options_(options), next_number_(options.first_number) {}

ChunkCipher::~ChunkCipher() = default;

Status ChunkCipher::set_key(Context& context, uint64_t epoch) {
  if (context.cipher && context.epoch == epoch) return {};
  Locked<Key> key;
  const Status derived = derive_key(*secret_, epoch, *key);
  context.epoch = epoch;
  context.cipher.reset();
  if (derived) context.cipher.emplace(*key);
  return derived;
}

// Begins a message: sets key, nonce and associated data.
Status ChunkCipher::begin(Context& context, AesGcm::Direction direction, uint64_t number,
                          const ChunkPlace& place, uint32_t slot_length) {
  AssociatedData data;
  data.session = options_.session;
  data.epoch = number / options_.chunks_per_key;
  data.number = number;
  data.node = place.node;
  data.offset = place.offset;
  data.length = place.length;
  data.compression = place.compression;
  data.slot_length = slot_length;
  if (Status set = set_key(context, data.epoch); !set) return set;
  std::array<std::byte, 80> encoded;
  wire::Writer writer(encoded);
  writer(data);
  assert(!writer.overrun());
  AesGcm::Nonce nonce{};
  for (size_t i = 0; i < sizeof number; ++i) {
    nonce[nonce.size() - 1 - i] = static_cast<uint8_t>(number >> (8 * i));
  }
  return context.cipher->begin(direction, nonce, std::span(encoded).first(writer.written_bytes()));
}

Result<wire::ChunkCheck> ChunkCipher::encrypt(const ChunkPlace& place,
                                              std::span<const std::byte> from,
                                              std::span<std::byte> to) {
  assert(from.size() == to.size());
  const auto context = contexts_.take();
  auto check = encrypt_with(*context, place, from, to);
  if (!check) ::OPENSSL_cleanse(to.data(), to.size());
  return check;
}

Result<wire::ChunkCheck> ChunkCipher::encrypt_with(Context& context, const ChunkPlace& place,
                                                   std::span<const std::byte> from,
                                                   std::span<std::byte> to) {
  wire::ChunkCheck check;
  check.number = next_number_.fetch_add(1, std::memory_order_relaxed);
  if (check.number >= kNumbersMax) {
    return failure(EOVERFLOW, "the session has encrypted the maximum number of chunks");
  }
  Status done = begin(context, AesGcm::Direction::kEncrypt, check.number, place,
                      static_cast<uint32_t>(from.size()));
  if (done) done = context.cipher->run(from.data(), to.data(), from.size());
  if (!done) return failure(done.error());
  const auto tag = context.cipher->tag();
  if (!tag) return failure(tag.error());
  check.code = *tag;
  return check;
}

Status ChunkCipher::decrypt(const ChunkPlace& place, const wire::ChunkCheck& check,
                            std::span<const Landing::Piece> pieces, std::byte* to) {
  const auto context = contexts_.take();
  Status decrypted = decrypt_with(*context, place, check, pieces, to);
  if (!decrypted) {
    for (const Landing::Piece& piece : pieces) {
      ::OPENSSL_cleanse(to != nullptr ? to : piece.data, piece.length);
      if (to != nullptr) to += piece.length;
    }
  }
  return decrypted;
}

Status ChunkCipher::decrypt_with(Context& context, const ChunkPlace& place,
                                 const wire::ChunkCheck& check,
                                 std::span<const Landing::Piece> pieces, std::byte* to) {
  uint32_t slot_length = 0;
  for (const Landing::Piece& piece : pieces) slot_length += piece.length;
  Status done = begin(context, AesGcm::Direction::kDecrypt, check.number, place, slot_length);
  if (!done) return done;
  for (const Landing::Piece& piece : pieces) {
    std::byte* const into = to != nullptr ? to : piece.data;
    done = context.cipher->run(piece.data, into, piece.length);
    if (!done) return done;
    if (to != nullptr) to += piece.length;
  }
  const auto verified = context.cipher->verify(check.code);
  if (!verified) return failure(verified.error());
  if (!*verified) {
    return failure(EIO, "the bytes or their place differ from what the source encrypted");
  }
  return {};
}

}  // namespace ppmr
