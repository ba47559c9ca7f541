#include "rdma_stream/session/aes_gcm.h"

#include <openssl/crypto.h>

#include <algorithm>

namespace ppmr {
namespace {

// What the slowest functions of libipsec-mb need.
constexpr uint64_t kNeeded =
    IMB_FEATURE_AESNI | IMB_FEATURE_PCLMULQDQ | IMB_FEATURE_SSE4_2 | IMB_FEATURE_CMOV;

// The functions for this processor, or null. Those that are used here change nothing in it.
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

AesGcmKey::AesGcmKey(std::span<const uint8_t, kBytes> key, AesLibrary library) : library_(library) {
  if (library == AesLibrary::kIpsecMb) {
    IMB_AES256_GCM_PRE(functions(), key.data(), &forms_->expanded);
  } else {
    std::copy(key.begin(), key.end(), forms_->plain.begin());
  }
}

Result<AesGcm> AesGcm::begin(const AesGcmKey& key, Direction direction, const Nonce& nonce,
                             std::span<const std::byte> associated) {
  AesGcm message(key, direction);
  if (key.library_ == AesLibrary::kIpsecMb) {
    IMB_AES256_GCM_INIT(functions(), &message.key_, &message.context_, nonce.data(),
                        raw(associated.data()), associated.size());
    return message;
  }
  message.cipher_.reset(::EVP_CIPHER_CTX_new());
  if (!message.cipher_) return failure(ENOMEM, "no memory for a cipher");
  int written = 0;
  if (::EVP_CipherInit_ex(message.cipher_.get(), ::EVP_aes_256_gcm(), nullptr,
                          key.forms_->plain.data(), nonce.data(),
                          direction == Direction::kEncrypt ? 1 : 0) != 1 ||
      ::EVP_CipherUpdate(message.cipher_.get(), nullptr, &written, raw(associated.data()),
                         static_cast<int>(associated.size())) != 1) {
    return openssl_failed();
  }
  return message;
}

Status AesGcm::run(const std::byte* from, std::byte* to, size_t length_bytes) {
  if (cipher_) {
    int written = 0;
    const bool done = ::EVP_CipherUpdate(cipher_.get(), raw(to), &written, raw(from),
                                         static_cast<int>(length_bytes)) == 1;
    return done ? Status{} : openssl_failed();
  }
  if (direction_ == Direction::kEncrypt) {
    IMB_AES256_GCM_ENC_UPDATE(functions(), &key_, &context_, raw(to), raw(from), length_bytes);
  } else {
    IMB_AES256_GCM_DEC_UPDATE(functions(), &key_, &context_, raw(to), raw(from), length_bytes);
  }
  return {};
}

Result<AesGcm::Tag> AesGcm::tag() {
  Tag tag;
  if (!cipher_) {
    IMB_AES256_GCM_ENC_FINALIZE(functions(), &key_, &context_, tag.data(), tag.size());
    return tag;
  }
  int written = 0;
  std::array<uint8_t, 16> rest;  // GCM leaves none
  if (::EVP_CipherFinal_ex(cipher_.get(), rest.data(), &written) != 1 ||
      ::EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()),
                            tag.data()) != 1) {
    return openssl_failed();
  }
  return tag;
}

Result<bool> AesGcm::verify(const Tag& tag) {
  Tag computed = tag;
  if (!cipher_) {
    IMB_AES256_GCM_DEC_FINALIZE(functions(), &key_, &context_, computed.data(), computed.size());
    return ::CRYPTO_memcmp(computed.data(), tag.data(), tag.size()) == 0;
  }
  if (::EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(tag.size()),
                            computed.data()) != 1) {
    return openssl_failed();
  }
  int written = 0;
  std::array<uint8_t, 16> rest;  // GCM leaves none
  return ::EVP_CipherFinal_ex(cipher_.get(), rest.data(), &written) == 1;
}

}  // namespace ppmr
