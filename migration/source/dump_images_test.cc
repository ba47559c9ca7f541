// Tests where the images of a dump are stored. A directory takes the place of the checkpoint.
#include "migration/source/dump_images.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/test_directory.h"
#include "mount/image_bundle.h"

namespace ppmr {
namespace {

constexpr size_t kLinks = 10;

class DumpImagesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "NOT TESTED: images of a dump in memory, which needs root";
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

  const TestDirectory directory_;
  const std::string checkpoint_ = directory_.path();
};

TEST_F(DumpImagesTest, PagesGoToTheCheckpointAndSmallFilesIntoTheBundle) {
  const std::string large(3 << 20, 'l');
  UniqueFd file;
  {
    const auto images = DumpImages::create(checkpoint_, kLinks);
    ASSERT_TRUE(images) << images.error().message;
    write(images->path() + "/core-1.img", "core");
    write(images->path() + "/inventory.img", "");
    write(images->path() + "/pages-1.img", "pages");
    write(images->path() + "/pages-9999.img", large);
    EXPECT_EQ(read(checkpoint_ + "/pages-1.img"), "pages") << "written there, not copied";
    auto bundle = images->bundle();
    ASSERT_TRUE(bundle) << bundle.error().message;
    file = std::move(*bundle);
  }
  const auto bundle = ImageBundle::open(file);
  ASSERT_TRUE(bundle) << bundle.error().message;
  EXPECT_EQ(bundle->included().size(), 2u);
  ASSERT_NE(bundle->find("core-1.img"), nullptr);
  EXPECT_EQ(bundle->find("core-1.img")->size(), 4u);
  ASSERT_NE(bundle->find("inventory.img"), nullptr);
  EXPECT_EQ(read(checkpoint_ + "/pages-9999.img"), large);
}

TEST(CountPagesFiles, CountsOneForEachProcessAndSharedMemory) {
  const auto alone = count_pages_files(getpid());
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_GE(*alone, 1u);
  const auto map = [] {
    return mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  };
  void* const first = map();
  void* const second = map();
  EXPECT_EQ(count_pages_files(getpid()).value(), *alone + 2);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  EXPECT_EQ(count_pages_files(getpid()).value(), *alone + 3);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  munmap(first, 4096);
  munmap(second, 4096);
}

TEST_F(DumpImagesTest, ImageThatIsNotARegularFileIsAnError) {
  const auto images = DumpImages::create(checkpoint_, kLinks);
  ASSERT_TRUE(images) << images.error().message;
  const std::string link = images->path() + "/pages-1.image";
  ASSERT_EQ(symlink("/etc/shadow", link.c_str()), 0);
  EXPECT_EQ(images->bundle().error().errno_value, EINVAL);
  ASSERT_EQ(unlink(link.c_str()), 0);
  std::filesystem::create_directory(images->path() + "/directory");
  EXPECT_EQ(images->bundle().error().errno_value, EINVAL);
}

TEST_F(DumpImagesTest, BundlesThousandsOfFilesAndCopiesFilesThatDoNotFit) {
  const auto images = DumpImages::create(checkpoint_, kLinks);
  ASSERT_TRUE(images) << images.error().message;
  const std::string text(20'000, 'x');
  constexpr size_t kFiles = 5000;  // the files have 100 MB
  for (size_t i = 0; i < kFiles; ++i) {
    write(images->path() + "/core-" + std::to_string(i) + ".img", text);
  }
  const auto file = images->bundle();
  ASSERT_TRUE(file) << file.error().message;
  const auto bundle = std::move(ImageBundle::open(*file).value());
  EXPECT_EQ(bundle.included().size(), kBundleMaxBytes / text.size());
  for (size_t i = 0; i < kFiles; ++i) {
    const std::string name = "core-" + std::to_string(i) + ".img";
    if (bundle.find(name) != nullptr) continue;
    ASSERT_EQ(read(checkpoint_ + "/" + name), text) << name;
  }
}

}  // namespace
}  // namespace ppmr
