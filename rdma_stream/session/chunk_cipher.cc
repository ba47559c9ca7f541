#include "rdma_stream/session/chunk_cipher.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <cassert>
#include <string>

namespace ppmr {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr size_t kNonceBytes = 12;
// Far from overflow, so that callers after the last number get an error, too.
constexpr uint64_t kNumbersMax = uint64_t{1} << 63;
constexpr char kKeyLabel[] = "ppmr chunks, source to target, epoch ";
constexpr std::array<char, 12> kChunkLabel = {'p', 'p', 'm', 'r', ' ', 'c',
                                              'h', 'u', 'n', 'k', ' ', '3'};

using Key = std::array<uint8_t, kKeyBytes>;

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

Error openssl_failure(const std::string& what) {
  const char* reason = ::ERR_reason_error_string(::ERR_peek_error());
  return {EIO, what + ": " + (reason != nullptr ? reason : "OpenSSL gives no reason")};
}

// HKDF-SHA256 without salt: the secret is uniformly random already (RFC 5869, 3.1).
Status derive_key(const ChunkCipher::Secret& secret, uint64_t epoch, Key& key) {
  std::array<uint8_t, sizeof kKeyLabel - 1 + sizeof epoch> info;
  std::copy_n(kKeyLabel, sizeof kKeyLabel - 1, info.begin());
  for (size_t i = 0; i < sizeof epoch; ++i) {
    info[sizeof kKeyLabel - 1 + i] = static_cast<uint8_t>(epoch >> (8 * i));
  }
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
    return failure(openssl_failure("derive the key of a session"));
  }
  return {};
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

struct ChunkCipher::Context {
  static constexpr uint64_t kNoKey = UINT64_MAX;
  std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)> cipher{::EVP_CIPHER_CTX_new(),
                                                                           &::EVP_CIPHER_CTX_free};
  uint64_t epoch = kNoKey;  // of the key in `cipher`
  bool encrypts = false;    // the direction of `cipher`
};

ChunkCipher::ChunkCipher(const Secret& secret, Options options)
    : secret_(secret), options_(options), next_number_(options.first_number) {}

ChunkCipher::~ChunkCipher() { ::OPENSSL_cleanse(secret_.data(), secret_.size()); }

Status ChunkCipher::set_key(Context& context, bool encrypts, uint64_t epoch) {
  if (!context.cipher) return failure(ENOMEM, "no memory for a cipher");
  Key key;
  Status derived = derive_key(secret_, epoch, key);
  context.epoch = Context::kNoKey;
  if (derived && ::EVP_CipherInit_ex(context.cipher.get(), ::EVP_aes_256_gcm(), nullptr, key.data(),
                                     nullptr, encrypts ? 1 : 0) != 1) {
    derived = failure(openssl_failure("set the key of a cipher"));
  }
  ::OPENSSL_cleanse(key.data(), key.size());
  if (!derived) return derived;
  context.epoch = epoch;
  context.encrypts = encrypts;
  return {};
}

// Sets key, nonce and associated data.
Status ChunkCipher::prepare(Context& context, bool encrypts, uint64_t number,
                            const ChunkPlace& place, uint32_t slot_length) {
  ::ERR_clear_error();
  AssociatedData data;
  data.session = options_.session;
  data.epoch = number / options_.chunks_per_key;
  data.number = number;
  data.node = place.node;
  data.offset = place.offset;
  data.length = place.length;
  data.compression = place.compression;
  data.slot_length = slot_length;
  if (context.epoch != data.epoch || context.encrypts != encrypts) {
    if (Status set = set_key(context, encrypts, data.epoch); !set) return set;
  }
  std::array<std::byte, 80> encoded;
  wire::Writer writer(encoded);
  writer(data);
  assert(!writer.overrun());
  std::array<uint8_t, kNonceBytes> nonce{};
  for (size_t i = 0; i < sizeof number; ++i) {
    nonce[kNonceBytes - 1 - i] = static_cast<uint8_t>(number >> (8 * i));
  }
  int written = 0;
  if (::EVP_CipherInit_ex(context.cipher.get(), nullptr, nullptr, nullptr, nonce.data(), -1) != 1 ||
      ::EVP_CipherUpdate(context.cipher.get(), nullptr, &written, raw(encoded.data()),
                         static_cast<int>(writer.written_bytes())) != 1) {
    return failure(openssl_failure("prepare a cipher"));
  }
  return {};
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
  if (Status prepared = prepare(context, /*encrypts=*/true, check.number, place,
                                static_cast<uint32_t>(from.size()));
      !prepared) {
    return failure(prepared.error());
  }
  EVP_CIPHER_CTX* const cipher = context.cipher.get();
  int written = 0;
  std::array<uint8_t, 16> rest;  // GCM leaves none
  if (::EVP_EncryptUpdate(cipher, raw(to.data()), &written, raw(from.data()),
                          static_cast<int>(from.size())) != 1 ||
      ::EVP_EncryptFinal_ex(cipher, rest.data(), &written) != 1 ||
      ::EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(check.code.size()),
                            check.code.data()) != 1) {
    return failure(openssl_failure("encrypt a chunk"));
  }
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
  if (Status prepared = prepare(context, /*encrypts=*/false, check.number, place, slot_length);
      !prepared) {
    return prepared;
  }
  EVP_CIPHER_CTX* const cipher = context.cipher.get();
  int written = 0;
  for (const Landing::Piece& piece : pieces) {
    if (::EVP_DecryptUpdate(cipher, raw(to != nullptr ? to : piece.data), &written, raw(piece.data),
                            static_cast<int>(piece.length)) != 1) {
      return failure(openssl_failure("decrypt a chunk"));
    }
    if (to != nullptr) to += piece.length;
  }
  std::array<uint8_t, 16> rest;  // GCM leaves none
  if (::EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_SET_TAG, static_cast<int>(check.code.size()),
                            const_cast<uint8_t*>(check.code.data())) != 1 ||
      ::EVP_DecryptFinal_ex(cipher, rest.data(), &written) != 1) {
    return failure(EIO, "the bytes or their place are not those that the source encrypted");
  }
  return {};
}

}  // namespace ppmr
