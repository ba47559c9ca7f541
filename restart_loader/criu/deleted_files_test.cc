#include "restart_loader/criu/deleted_files.h"

#include <gtest/gtest.h>

#include <vector>

namespace ppmr {
namespace {

using Image = std::vector<unsigned char>;

// Two magic numbers, the length, and uid, gid, mode, dev.
Image head() {
  Image image(12, 0xff);
  for (const unsigned char byte : {0x08, 0, 0x10, 0, 0x18, 0x80, 0x83, 0x02, 0x20, 0x2a}) {
    image.push_back(byte);
  }
  return image;
}

uint64_t inode_in(const Image& image) { return inode_in_deleted_image(image.data(), image.size()); }

TEST(DeletedFiles, TheInodeIsTheFifthField) {
  Image image = head();
  image.insert(image.end(), {0x28, 0xac, 0x02, 0x30, 0x01});
  EXPECT_EQ(inode_in(image), 300U);
}

TEST(DeletedFiles, AnInodeMayHave64Bits) {
  Image image = head();
  image.push_back(0x28);
  image.insert(image.end(), 9, 0xff);
  image.push_back(0x01);
  EXPECT_EQ(inode_in(image), UINT64_MAX);
}

TEST(DeletedFiles, AnImageThatEndsEarlyOrHasOtherFieldsNamesNone) {
  EXPECT_EQ(inode_in(head()), 0U);
  EXPECT_EQ(inode_in(Image(5, 0)), 0U);
  Image image = head();
  image.insert(image.end(), {0x28, 0xac});  // ends within the number
  EXPECT_EQ(inode_in(image), 0U);
  image = head();
  image.insert(image.end(), {0x2a, 0x02, 0x05});  // no number
  EXPECT_EQ(inode_in(image), 0U);
  image = head();
  image.push_back(0x28);
  image.insert(image.end(), 11, 0xff);  // too long
  EXPECT_EQ(inode_in(image), 0U);
}

}  // namespace
}  // namespace ppmr
