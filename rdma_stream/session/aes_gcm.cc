#include "rdma_stream/session/aes_gcm.h"

#include <openssl/crypto.h>

#include <algorithm>

namespace ppmr {
namespace {

// The processor features that the slowest functions of libipsec-mb need.
constexpr uint64_t kNeeded =
    IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ | IMB_FEATURE_SSE4_2 | IMB_FEATURE_CMOV;

// Returns the functions of libipsec-mb for this processor, or null. The functions that ppmr uses do
// not change the manager.
IMB_MGR* functions() {
  static IMB_MGR* const found = [] {
    IMB_MGR* const made = ::alloc_mb_mgr(0);
    if (made == nullptr || (made->features & kNeeded) != kNeeded)
      return static_cast<IMB_MGR*>(nullptr);
    ::init_mb_mgr_auto(made, nullptr);
    return made;
  }();
  return found;
}

uint8_t* raw(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }
const uint8_t* raw(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }

tl::unexpected<Error> openssl_failed() {
  return failure(EIO, "OpenSSL cannot encrypt or decrypt a chunk");
}

}  // namespace

AesLibrary best_aes_library() {
  return functions() != nullptr ? AesLibrary::kIpsecMb : AesLibrary::kOpenSsl;
}

AesGcm::AesGcm(std::span<const uint8_t, kKeyBytes> key, AesLibrary library)
    : library_(library),
      cipher_(library == AesLibrary::kOpenSsl ? ::EVP_CIPHER_CTX_new() : nullptr,
              &::EVP_CIPHER_CTX_free) {
  if (library == AesLibrary::kIpsecMb) {
    IMB_AES256_GCM_PRE(functions(), key.data(), &secrets_->expanded_key);
  } else {
    std::copy(key.begin(), key.end(), secrets_->key.begin());
  }
}

Status AesGcm::begin(Direction direction, const Nonce& nonce,
                     std::span<const std::byte> associated) {
  direction_ = direction;
  if (library_ == AesLibrary::kIpsecMb) {
    IMB_AES256_GCM_INIT(functions(), &secrets_->expanded_key, &secrets_->message, nonce.data(),
                        raw(associated.data()), associated.size());
    return {};
  }
  if (!cipher_) return failure(ENOMEM, "no memory for a cipher");
  int written = 0;
  if (::EVP_CipherInit_ex(cipher_.get(), ::EVP_aes_256_gcm(), nullptr, secrets_->key.data(),
                          nonce.data(), direction == Direction::kEncrypt ? 1 : 0) != 1 ||
      ::EVP_CipherUpdate(cipher_.get(), nullptr, &written, raw(associated.data()),
                         static_cast<int>(associated.size())) != 1) {
    return openssl_failed();
  }
  return {};
}

Status AesGcm::run(const std::byte* from, std::byte* to, size_t length_bytes) {
  if (library_ == AesLibrary::kOpenSsl) {
    int written = 0;
    const bool done = ::EVP_CipherUpdate(cipher_.get(), raw(to), &written, raw(from),
                                         static_cast<int>(length_bytes)) == 1;
    return done ? Status{} : openssl_failed();
  }
  if (direction_ == Direction::kEncrypt) {
    IMB_AES256_GCM_ENC_UPDATE(functions(), &secrets_->expanded_key, &secrets_->message, raw(to),
                              raw(from), length_bytes);
  } else {
    IMB_AES256_GCM_DEC_UPDATE(functions(), &secrets_->expanded_key, &secrets_->message, raw(to),
                              raw(from), length_bytes);
  }
  return {};
}

Result<AesGcm::Tag> AesGcm::tag() {
  Tag tag;
  if (library_ == AesLibrary::kIpsecMb) {
    IMB_AES256_GCM_ENC_FINALIZE(functions(), &secrets_->expanded_key, &secrets_->message,
                                tag.data(), tag.size());
    return tag;
  }
  int written = 0;
  std::array<uint8_t, 16> rest;  // GCM leaves no bytes
  if (::EVP_CipherFinal_ex(cipher_.get(), rest.data(), &written) != 1 ||
      ::EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()),
                            tag.data()) != 1) {
    return openssl_failed();
  }
  return tag;
}

Result<bool> AesGcm::verify(const Tag& tag) {
  Tag computed = tag;
  if (library_ == AesLibrary::kIpsecMb) {
    IMB_AES256_GCM_DEC_FINALIZE(functions(), &secrets_->expanded_key, &secrets_->message,
                                computed.data(), computed.size());
    return ::CRYPTO_memcmp(computed.data(), tag.data(), tag.size()) == 0;
  }
  if (::EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(tag.size()),
                            computed.data()) != 1) {
    return openssl_failed();
  }
  int written = 0;
  std::array<uint8_t, 16> rest;  // GCM leaves no bytes
  return ::EVP_CipherFinal_ex(cipher_.get(), rest.data(), &written) == 1;
}

}  // namespace ppmr
