#include "base/block_cipher.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <memory>

namespace ppmr {

Result<std::shared_ptr<const BlockCipher>> BlockCipher::with_new_key() {
  const std::shared_ptr<BlockCipher> made(new BlockCipher());
  // OpenSSL refuses a key of two equal halves. A random key has equal halves once in 2^256 times.
  if (::RAND_priv_bytes(made->key_->data(), static_cast<int>(made->key_->size())) != 1) {
    return failure(EIO, "the system has no random numbers for a key");
  }
  return made;
}

Status BlockCipher::encrypt(uint64_t first, std::span<const std::byte> from, std::byte* to) const {
  return run(/*encrypts=*/true, first, from, to);
}

Status BlockCipher::decrypt(uint64_t first, std::span<const std::byte> from, std::byte* to) const {
  return run(/*encrypts=*/false, first, from, to);
}

Status BlockCipher::run(bool encrypts, uint64_t first, std::span<const std::byte> from,
                        std::byte* to) const {
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)> context(
      ::EVP_CIPHER_CTX_new(), &::EVP_CIPHER_CTX_free);
  if (!context) return failure(ENOMEM, "no memory for a cipher");
  bool done = ::EVP_CipherInit_ex(context.get(), ::EVP_aes_256_xts(), nullptr, key_->data(),
                                  nullptr, encrypts ? 1 : 0) == 1;
  for (uint64_t block = first; done && !from.empty(); ++block) {
    std::array<unsigned char, 16> tweak{};  // the number, least significant byte first
    for (size_t i = 0; i < sizeof block; ++i) {
      tweak[i] = static_cast<unsigned char>(block >> (8 * i));
    }
    int written = 0;
    done = ::EVP_CipherInit_ex(context.get(), nullptr, nullptr, nullptr, tweak.data(), -1) == 1 &&
           ::EVP_CipherUpdate(context.get(), reinterpret_cast<unsigned char*>(to), &written,
                              reinterpret_cast<const unsigned char*>(from.data()),
                              static_cast<int>(kBlockBytes)) == 1;
    from = from.subspan(kBlockBytes);
    to += kBlockBytes;
  }
  if (!done) return failure(EIO, "OpenSSL cannot encrypt or decrypt blocks");
  return {};
}

}  // namespace ppmr
