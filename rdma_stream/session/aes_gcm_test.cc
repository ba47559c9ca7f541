#include "rdma_stream/session/aes_gcm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace ppmr {
namespace {

using Bytes = std::vector<std::byte>;
using Direction = AesGcm::Direction;

constexpr AesGcm::Nonce kNonce = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

std::array<uint8_t, AesGcm::kKeyBytes> key() {
  std::array<uint8_t, AesGcm::kKeyBytes> key;
  std::iota(key.begin(), key.end(), uint8_t{0});
  return key;
}

Bytes pattern(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 251);
  return bytes;
}

// Encrypts in parts whose lengths are not multiples of the block length. Returns the tag.
AesGcm::Tag encrypt(AesGcm& cipher, Bytes& bytes, size_t part) {
  EXPECT_TRUE(cipher.begin(Direction::kEncrypt, kNonce, pattern(61)));
  for (size_t at = 0; at < bytes.size(); at += part) {
    EXPECT_TRUE(
        cipher.run(bytes.data() + at, bytes.data() + at, std::min(part, bytes.size() - at)));
  }
  return cipher.tag().value();
}

bool decrypt(AesGcm& cipher, Bytes& bytes, const AesGcm::Tag& tag) {
  EXPECT_TRUE(cipher.begin(Direction::kDecrypt, kNonce, pattern(61)));
  EXPECT_TRUE(cipher.run(bytes.data(), bytes.data(), bytes.size()));
  return cipher.verify(tag).value();
}

class AesGcmTest : public testing::TestWithParam<AesLibrary> {
 protected:
  void SetUp() override {
    if (GetParam() == AesLibrary::kIpsecMb && best_aes_library() != AesLibrary::kIpsecMb) {
      GTEST_SKIP() << "this processor lacks AES or PCLMULQDQ";
    }
  }
};

TEST_P(AesGcmTest, ComputesTheSameAsOpenSsl) {
  AesGcm mine(key(), GetParam());
  AesGcm reference(key(), AesLibrary::kOpenSsl);
  for (const size_t size : {size_t{1}, size_t{15}, size_t{16}, size_t{4096}, size_t{1} << 20}) {
    for (const size_t part : {size_t{7}, size_t{4096 + 5}, size}) {
      if (size / part > 10'000) continue;
      Bytes bytes = pattern(size);
      Bytes expected = bytes;
      EXPECT_EQ(encrypt(mine, bytes, part), encrypt(reference, expected, size)) << size;
      EXPECT_TRUE(bytes == expected) << size << " in parts of " << part;
    }
  }
}

TEST_P(AesGcmTest, VerifiesOnlyTheTagOfTheMessage) {
  AesGcm mine(key(), GetParam());
  Bytes bytes = pattern(5000);
  const AesGcm::Tag tag = encrypt(mine, bytes, 5000);
  Bytes right = bytes;
  EXPECT_TRUE(decrypt(mine, right, tag));
  EXPECT_EQ(right, pattern(5000));
  for (const size_t changed : {size_t{0}, size_t{4095}, size_t{4999}}) {
    Bytes wrong = bytes;
    wrong[changed] ^= std::byte{1};
    EXPECT_FALSE(decrypt(mine, wrong, tag)) << changed;
  }
  AesGcm::Tag wrong_tag = tag;
  wrong_tag.back() ^= 1;
  EXPECT_FALSE(decrypt(mine, bytes, wrong_tag));
}

INSTANTIATE_TEST_SUITE_P(Libraries, AesGcmTest,
                         testing::Values(AesLibrary::kIpsecMb, AesLibrary::kOpenSsl));

}  // namespace
}  // namespace ppmr
