#include "base/block_cipher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace ppmr {
namespace {

constexpr size_t kBlock = BlockCipher::kBlockBytes;
using Bytes = std::vector<std::byte>;

BlockCipher::Key key() {
  BlockCipher::Key key;
  std::iota(key.begin(), key.end(), uint8_t{0});
  return key;
}

Bytes encrypted(const BlockCipher& cipher, uint64_t first, const Bytes& bytes) {
  Bytes to(bytes.size());
  EXPECT_TRUE(cipher.encrypt(first, bytes, to.data()));
  return to;
}

// Another implementation computed the expected bytes (python3-cryptography: AES in mode XTS).
TEST(BlockCipher, BytesEqualThoseOfAnotherImplementation) {
  const Bytes block = encrypted(BlockCipher(key()), 0x123456789a, Bytes(kBlock, std::byte{0x5a}));
  std::string hex;
  for (size_t i = 0; i < 16; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<uint8_t>(block[i]) >> 4];
    hex += kDigits[static_cast<uint8_t>(block[i]) & 15];
  }
  EXPECT_EQ(hex, "37fe201bdfdfaab36d68b336a57a9a5b");
}

TEST(BlockCipher, DecryptsItsOwnBytesInPlace) {
  const auto made = BlockCipher::with_new_key().value();
  const BlockCipher& cipher = *made;
  Bytes bytes(3 * kBlock);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 / 3);
  Bytes stored = encrypted(cipher, 9, bytes);
  EXPECT_NE(stored, bytes);
  ASSERT_TRUE(cipher.decrypt(9, stored, stored.data()));
  EXPECT_EQ(stored, bytes);
}

// A block can be read alone.
TEST(BlockCipher, EachBlockIsDecryptedByItsNumber) {
  const auto made = BlockCipher::with_new_key().value();
  const BlockCipher& cipher = *made;
  const Bytes blocks = encrypted(cipher, 4, Bytes(2 * kBlock, std::byte{1}));
  EXPECT_FALSE(std::equal(blocks.begin(), blocks.begin() + kBlock, blocks.begin() + kBlock));
  EXPECT_EQ(encrypted(cipher, 5, Bytes(kBlock, std::byte{1})),
            Bytes(blocks.begin() + kBlock, blocks.end()));
}

TEST(BlockCipher, EveryNewKeyIsDifferent) {
  const Bytes block(kBlock);
  EXPECT_NE(encrypted(*BlockCipher::with_new_key().value(), 0, block),
            encrypted(*BlockCipher::with_new_key().value(), 0, block));
}

}  // namespace
}  // namespace ppmr
