#include "fuse_target/keep/kept_layout.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <memory>

namespace ppmr {
namespace {

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&::EVP_CIPHER_CTX_free)>;

const unsigned char* bytes_of(const void* data) { return static_cast<const unsigned char*>(data); }

// The key encrypts one index only, so the nonce can be constant.
constexpr std::array<unsigned char, 12> kNonce{};

// Begins to encrypt or decrypt: key, nonce, and the authenticated bytes.
bool begin(EVP_CIPHER_CTX* cipher, bool encrypts, const KeptFileKeys& keys,
           const KeptHeader& header, KeptTrailer trailer) {
  trailer.tag = {};
  int length = 0;
  return ::EVP_CipherInit_ex(cipher, ::EVP_aes_256_gcm(), nullptr, keys.index.data(), kNonce.data(),
                             encrypts ? 1 : 0) == 1 &&
         ::EVP_CipherUpdate(cipher, nullptr, &length, bytes_of(&header), sizeof header) == 1 &&
         ::EVP_CipherUpdate(cipher, nullptr, &length, bytes_of(&trailer), sizeof trailer) == 1;
}

bool run(EVP_CIPHER_CTX* cipher, std::span<std::byte> index) {
  int length = 0;
  auto* const data = reinterpret_cast<unsigned char*>(index.data());
  return ::EVP_CipherUpdate(cipher, data, &length, data, static_cast<int>(index.size())) == 1;
}

}  // namespace

void derive_kept_keys(const SharedKey& key, const KeptHeader& header, KeptFileKeys& keys) {
  const auto derive = [&](const char* part) {
    std::string label = std::string("ppmr kept checkpoint 1, ") + part + ", ";
    label.append(reinterpret_cast<const char*>(header.salt.data()), header.salt.size());
    return derive_key(key, label);
  };
  SharedKey first = derive("blocks");
  SharedKey second = derive("tweaks");
  static_assert(sizeof keys.blocks == sizeof first + sizeof second);
  std::copy(second.begin(), second.end(),
            std::copy(first.begin(), first.end(), keys.blocks.begin()));
  keys.index = derive("index");
  ::explicit_bzero(first.data(), first.size());
  ::explicit_bzero(second.data(), second.size());
}

Result<KeptHeader> make_kept_header(const std::string& name, const SharedKey& key) {
  KeptHeader header;
  if (name.size() > header.name.size()) {
    return failure(ENAMETOOLONG, "keep a checkpoint: its name is too long");
  }
  header.name_bytes = static_cast<uint32_t>(name.size());
  std::copy(name.begin(), name.end(), header.name.begin());
  const std::string id = key_id(key);
  std::copy_n(id.begin(), std::min(id.size(), header.key_id.size()), header.key_id.begin());
  if (::RAND_bytes(header.salt.data(), static_cast<int>(header.salt.size())) != 1) {
    return failure(EIO, "keep a checkpoint: the system has no random numbers for a key");
  }
  return header;
}

Status encrypt_index(const KeptFileKeys& keys, const KeptHeader& header, KeptTrailer& trailer,
                     std::span<std::byte> index) {
  const Cipher cipher(::EVP_CIPHER_CTX_new(), &::EVP_CIPHER_CTX_free);
  int length = 0;
  if (!cipher || !begin(cipher.get(), true, keys, header, trailer) || !run(cipher.get(), index) ||
      ::EVP_CipherFinal_ex(cipher.get(), nullptr, &length) != 1 ||
      ::EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG,
                            static_cast<int>(trailer.tag.size()), trailer.tag.data()) != 1) {
    return failure(EIO, "OpenSSL cannot encrypt the index");
  }
  return {};
}

Status decrypt_index(const KeptFileKeys& keys, const KeptHeader& header, const KeptTrailer& trailer,
                     std::span<std::byte> index) {
  const Cipher cipher(::EVP_CIPHER_CTX_new(), &::EVP_CIPHER_CTX_free);
  auto tag = trailer.tag;
  int length = 0;
  if (!cipher || !begin(cipher.get(), false, keys, header, trailer) || !run(cipher.get(), index) ||
      ::EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, static_cast<int>(tag.size()),
                            tag.data()) != 1) {
    return failure(EIO, "OpenSSL cannot decrypt the index");
  }
  if (::EVP_CipherFinal_ex(cipher.get(), nullptr, &length) != 1) {
    return failure(EBADMSG, "the index is damaged");
  }
  return {};
}

}  // namespace ppmr
