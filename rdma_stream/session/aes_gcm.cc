#include "rdma_stream/session/aes_gcm.h"

#include <new>

namespace ppmr {
namespace {

// The functions for this processor. Those that are used here change nothing in it.
IMB_MGR* functions() {
  static IMB_MGR* const found = [] {
    IMB_MGR* made = ::alloc_mb_mgr(0);
    if (made != nullptr && (made->features & IMB_FEATURE_AESNI) == 0) {
      ::free_mb_mgr(made);
      made = ::alloc_mb_mgr(IMB_FLAG_AESNI_OFF);
    }
    if (made == nullptr) throw std::bad_alloc();
    ::init_mb_mgr_auto(made, nullptr);
    return made;
  }();
  return found;
}

uint8_t* raw(std::byte* bytes) { return reinterpret_cast<uint8_t*>(bytes); }
const uint8_t* raw(const std::byte* bytes) { return reinterpret_cast<const uint8_t*>(bytes); }

}  // namespace

AesGcmKey::AesGcmKey(std::span<const uint8_t, kBytes> key) {
  IMB_AES256_GCM_PRE(functions(), key.data(), &*expanded_);
}

AesGcm::AesGcm(const AesGcmKey& key, const Nonce& nonce, std::span<const std::byte> associated)
    : key_(*key.expanded_) {
  IMB_AES256_GCM_INIT(functions(), &key_, &context_, nonce.data(), raw(associated.data()),
                      associated.size());
}

void AesGcm::encrypt(const std::byte* from, std::byte* to, size_t length_bytes) {
  IMB_AES256_GCM_ENC_UPDATE(functions(), &key_, &context_, raw(to), raw(from), length_bytes);
}

void AesGcm::decrypt(const std::byte* from, std::byte* to, size_t length_bytes) {
  IMB_AES256_GCM_DEC_UPDATE(functions(), &key_, &context_, raw(to), raw(from), length_bytes);
}

AesGcm::Tag AesGcm::encrypted_tag() {
  Tag tag;
  IMB_AES256_GCM_ENC_FINALIZE(functions(), &key_, &context_, tag.data(), tag.size());
  return tag;
}

AesGcm::Tag AesGcm::decrypted_tag() {
  Tag tag;
  IMB_AES256_GCM_DEC_FINALIZE(functions(), &key_, &context_, tag.data(), tag.size());
  return tag;
}

}  // namespace ppmr
