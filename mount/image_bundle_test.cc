#include "mount/image_bundle.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>

namespace ppmr {
namespace {

using Files = std::vector<BundleWriter::File>;

UniqueFd write_bundle(const Files& files, bool is_flat = true) {
  auto writer = BundleWriter::create(files, is_flat);
  EXPECT_TRUE(writer) << writer.error().message;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto bytes = writer->bytes_of(i);
    EXPECT_EQ(bytes.size(), files[i].included ? files[i].size_bytes : 0);
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>('a' + i));
  }
  return std::move(*writer->finish());
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ImageBundle, HasTheFilesThatWereWritten) {
  const UniqueFd memfd =
      write_bundle({{"core-1.img", 3, true}, {"pages-1.img", 1 << 30, false}, {"empty", 0, true}});
  const auto bundle = ImageBundle::open(memfd);
  ASSERT_TRUE(bundle) << bundle.error().message;
  EXPECT_TRUE(bundle->is_flat());
  ASSERT_EQ(bundle->included().size(), 2u);
  EXPECT_EQ(text_of(*bundle->find("core-1.img")), "aaa");
  EXPECT_EQ(text_of(*bundle->find("empty")), "");
  EXPECT_EQ(bundle->find("pages-1.img"), nullptr);
  EXPECT_EQ(bundle->find("core"), nullptr);
  ASSERT_EQ(bundle->left_out().size(), 1u);
  EXPECT_EQ(bundle->left_out().at("pages-1.img"), uint64_t{1} << 30);
  EXPECT_FALSE(ImageBundle::open(write_bundle({}, false))->is_flat());
}

TEST(ImageBundle, CannotBeChanged) {
  const UniqueFd memfd = write_bundle({{"core-1.img", 3, true}});
  EXPECT_EQ(::pwrite(memfd.get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(memfd.get(), 0), -1);
  EXPECT_EQ(::mmap(nullptr, 1, PROT_WRITE, MAP_SHARED, memfd.get(), 0), MAP_FAILED);
}

TEST(ImageBundle, TooManyBytesAreRefused) {
  EXPECT_TRUE(BundleWriter::create({{"a", kBundleMaxBytes, true}}, true));
  const auto refused = BundleWriter::create({{"a", kBundleMaxBytes, true}, {"b", 1, true}}, true);
  EXPECT_EQ(refused.error().errno_value, EPROTO);
}

// Returns the bytes of a bundle, changed by `change`, in a sealed or unsealed memfd.
UniqueFd changed(const std::function<void(std::string&)>& change, bool is_sealed = true) {
  const UniqueFd memfd = write_bundle({{"one", 3, true}, {"two", 5, true}});
  std::string bytes(1000, '\0');
  bytes.resize(static_cast<size_t>(::pread(memfd.get(), bytes.data(), bytes.size(), 0)));
  change(bytes);
  UniqueFd copy(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(copy.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  if (is_sealed) {
    EXPECT_EQ(
        ::fcntl(copy.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL),
        0);
  }
  return copy;
}

int error_of(const UniqueFd& memfd) {
  const auto opened = ImageBundle::open(memfd);
  return opened ? 0 : opened.error().errno_value;
}

TEST(ImageBundle, DamagedBundleIsRefused) {
  EXPECT_EQ(error_of(changed([](std::string&) {})), 0);
  EXPECT_EQ(error_of(changed([](std::string&) {}, /*is_sealed=*/false)), EPROTO);
  EXPECT_EQ(error_of(changed([](std::string& bytes) { bytes += '\0'; })), EPROTO);
  EXPECT_EQ(error_of(changed([](std::string& bytes) { bytes[0] ^= 1; })), EPROTO);
  for (size_t length = 0; length < 3 * 8 + 2 * 16 + 6 + 8; ++length) {
    EXPECT_EQ(error_of(changed([&](std::string& bytes) { bytes.resize(length); })), EPROTO);
  }
  using namespace std::string_literals;
  for (const std::string& name : {"../"s, "a/b"s, "a\0b"s, "two"s}) {
    EXPECT_EQ(
        error_of(changed([&](std::string& bytes) { bytes.replace(bytes.find("one"), 3, name); })),
        EPROTO);
  }
}

}  // namespace
}  // namespace ppmr
