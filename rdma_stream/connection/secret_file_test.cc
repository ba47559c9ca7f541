// Tests that key files are created private, and refused when other users can use them.
#include "rdma_stream/connection/secret_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ppmr {
namespace {

struct KeyFile : testing::Test {
  KeyFile() {
    std::string path = (std::filesystem::temp_directory_path() / "ppmr-key-XXXXXX").string();
    directory = ::mkdtemp(path.data());
    file = (directory / "key").string();
  }
  ~KeyFile() override { std::filesystem::remove_all(directory); }

  void write(const std::string& content, mode_t mode = 0600) const {
    std::ofstream(file) << content;
    ::chmod(file.c_str(), mode);
  }
  void expect_refusal(int errno_value, const std::string& reason) const {
    const auto key = read_key_file(file);
    ASSERT_FALSE(key);
    EXPECT_EQ(key.error().errno_value, errno_value);
    EXPECT_NE(key.error().message.find(file), std::string::npos) << key.error().message;
    EXPECT_NE(key.error().message.find(reason), std::string::npos) << key.error().message;
  }

  static inline const std::string kGood = std::string(62, '0') + "aF";
  std::filesystem::path directory;
  std::string file;
};

TEST_F(KeyFile, IsCreatedPrivateAndCanBeReadBack) {
  const auto made = create_key_file(file);
  ASSERT_TRUE(made);
  EXPECT_EQ(read_key_file(file).value(), std::vector{*made});
  struct stat found {};
  ::stat(file.c_str(), &found);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(KeyFile, EachCreationGeneratesANewKey) {
  const auto other = create_key_file((directory / "other").string());
  const auto made = create_key_file(file);
  EXPECT_NE(*made, *other);
  EXPECT_NE(key_id(*made), key_id(*other));
  EXPECT_EQ(key_id(*made), key_id(*made));
}

TEST_F(KeyFile, IsNeverOverwritten) {
  write("precious");
  const auto made = create_key_file(file);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().errno_value, EEXIST);
  std::string content;
  std::ifstream(file) >> content;
  EXPECT_EQ(content, "precious");
}

TEST_F(KeyFile, HoldsTwoKeysDuringARotation) {
  const std::string other = std::string(62, '1') + "aF";
  write(kGood + "\n" + other + "\n");
  const auto keys = read_key_file(file);
  ASSERT_TRUE(keys) << keys.error().message;
  ASSERT_EQ(keys->size(), 2u);
  EXPECT_EQ((*keys)[0][0], 0x00);
  EXPECT_EQ((*keys)[1][0], 0x11);
  write(kGood + "\n" + kGood + "\n");
  expect_refusal(EINVAL, "two keys are the same");
  write(kGood + "\n" + other + "\n" + std::string(64, '2') + "\n");
  expect_refusal(EINVAL, "remove the oldest");
  write(kGood + "\n\n" + other + "\n");
  expect_refusal(EINVAL, "found 0 characters");
}

TEST_F(KeyFile, DerivedKeysDifferByLabelAndByKey) {
  SharedKey one{}, two{};
  two[31] = 1;
  EXPECT_EQ(derive_key(one, "source node1"), derive_key(one, "source node1"));
  EXPECT_NE(derive_key(one, "source node1"), derive_key(one, "source node2"));
  EXPECT_NE(derive_key(one, "source node1"), derive_key(two, "source node1"));
}

TEST_F(KeyFile, IsRefusedIfOthersCanUseIt) {
  for (mode_t mode : {0640, 0604, 0660, 0620, 0602, 0777}) {
    write(kGood, mode);
    expect_refusal(EPERM, "other users can access it");
  }
}

TEST_F(KeyFile, IsRefusedIfItBelongsToAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can change the owner of a file";
  write(kGood);
  ASSERT_EQ(::chown(file.c_str(), 65534, 65534), 0);
  expect_refusal(EPERM, "belongs to user 65534");
}

TEST_F(KeyFile, IsRefusedWithInvalidContents) {
  write("");
  expect_refusal(EINVAL, "is empty");
  write(kGood.substr(1));
  expect_refusal(EINVAL, "63 characters");
  write(kGood + "0");
  expect_refusal(EINVAL, "65 characters");
  write(kGood.substr(1) + "g");
  expect_refusal(EINVAL, "hexadecimal");
  write(std::string(100'000, '0'));
  expect_refusal(EFBIG, "");
}

TEST_F(KeyFile, MayEndWithALineBreak) {
  write(kGood + "\r\n");
  EXPECT_EQ(read_key_file(file).value().at(0).back(), 0xaf);
}

TEST_F(KeyFile, IsRefusedIfItIsNotARegularFile) {
  expect_refusal(ENOENT, "No such file");
  expect_refusal(ENOENT, "ppmr keygen " + file);
  ::mkfifo(file.c_str(), 0600);
  expect_refusal(EPERM, "not a regular file");
}

}  // namespace
}  // namespace ppmr
