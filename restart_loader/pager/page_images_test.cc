#include "restart_loader/pager/page_images.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

constexpr uint32_t kLazy = 2, kPresent = 4;

class PageImagesTest : public testing::Test {
 protected:
  PageImagesTest() {
    std::string path = testing::TempDir() + "/images-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
    add_number(0x54564319);
    add_number(0x56084025);
    criu::pagemap_head head;
    head.set_pages_id(3);
    add(head);
  }
  ~PageImagesTest() override { std::filesystem::remove_all(directory_); }

  void add_number(uint32_t value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void add(const google::protobuf::MessageLite& message) {
    add_number(static_cast<uint32_t>(message.ByteSizeLong()));
    bytes_ += message.SerializeAsString();
  }
  void add_pages(uint64_t address, uint64_t pages, uint32_t flags, bool of_criu_3 = false) {
    criu::pagemap_entry entry;
    entry.set_vaddr(address);
    entry.set_compat_nr_pages(of_criu_3 ? static_cast<uint32_t>(pages) : 0);
    if (!of_criu_3) entry.set_nr_pages(pages);
    entry.set_flags(flags);
    add(entry);
  }
  Result<TaskImages> read(const std::string& memory = "") {
    std::ofstream(directory_ + "/pagemap-17.img") << bytes_ << std::flush;
    std::ofstream(directory_ + "/pages-3.img") << "pages" << std::flush;
    const auto images = PageImages::open(*RestoreImages::open(directory_), memory);
    if (!images) return failure(images.error());
    return images->of(17);
  }

  // Writes memory of process 17 to a memory file, and writes its page index.
  std::string write_memory(std::vector<PageRange> ranges) {
    PageIndex index{16 * kPageBytes, {{17, 4017, std::move(ranges)}}};
    EXPECT_TRUE(write_page_index(directory_ + "/" + kPageIndexFile, index));
    std::ofstream(directory_ + "/memory") << "memory" << std::flush;
    return directory_ + "/memory";
  }

  std::string directory_;
  std::string bytes_;
};

TEST_F(PageImagesTest, PagesThatTheDumpLeftOutAreInTheMemoryFile) {
  add_pages(0x10000, 2, kPresent);
  add_pages(0x20000, 4, kLazy);
  add_pages(0x30000, 1, kLazy);
  // The index also has memory that the dump does not list, and has other ranges.
  const auto memory = write_memory({{0x1f000, 0x22000, 0}, {0x22000, 0x32000, 5 * kPageBytes}});
  EXPECT_FALSE(read(memory));  // the second range is not in the file
  const auto good = write_memory({{0x1f000, 0x22000, 0},
                                  {0x22000, 0x24000, 7 * kPageBytes},
                                  {0x2f000, 0x31000, 10 * kPageBytes}});
  const auto images = read(good);
  ASSERT_TRUE(images) << images.error().message;
  ASSERT_TRUE(images->pages);
  std::vector<std::vector<uint64_t>> ranges;
  for (const PageRange& range : images->ranges) {
    ranges.push_back({range.start, range.end, range.offset / kPageBytes});
  }
  EXPECT_EQ(ranges, (std::vector<std::vector<uint64_t>>{{0x1f000, 0x20000, 0},
                                                        {0x20000, 0x22000, 1},
                                                        {0x22000, 0x24000, 7},
                                                        {0x2f000, 0x30000, 10},
                                                        {0x30000, 0x31000, 11}}));
}

TEST_F(PageImagesTest, MemoryThatTheDumpDoesNotListIsInTheMemoryFile) {
  add_pages(0x11000, 2, kPresent);  // CRIU restores it
  add_pages(0x20000, 1, kPresent);
  const auto images = read(write_memory({{0x10000, 0x12000, 0},
                                         {0x12000, 0x14000, 2 * kPageBytes},
                                         {0x18000, 0x19000, 5 * kPageBytes},
                                         {0x20000, 0x22000, 7 * kPageBytes}}));
  ASSERT_TRUE(images) << images.error().message;
  std::vector<std::vector<uint64_t>> ranges;
  for (const PageRange& range : images->ranges) {
    ranges.push_back({range.start, range.end, range.offset / kPageBytes});
  }
  EXPECT_EQ(ranges, (std::vector<std::vector<uint64_t>>{{0x10000, 0x11000, 0},
                                                        {0x13000, 0x14000, 3},
                                                        {0x18000, 0x19000, 5},
                                                        {0x21000, 0x22000, 8}}));
}

TEST_F(PageImagesTest, MemoryWithoutAPlaceIsNamed) {
  add_pages(0x20000, 4, kLazy);
  for (const auto& ranges :
       {std::vector<PageRange>{{0x20000, 0x23000, 0}},
        std::vector<PageRange>{{0x21000, 0x24000, 0}},
        std::vector<PageRange>{{0x20000, 0x21000, 0}, {0x22000, 0x24000, 4096}},
        std::vector<PageRange>{}}) {
    const auto images = read(write_memory(ranges));
    ASSERT_FALSE(images);
    EXPECT_NE(images.error().message.find("process 17"), std::string::npos)
        << images.error().message;
  }
}

TEST_F(PageImagesTest, MemoryInTwoPlacesIsAnError) {
  add_pages(0x20000, 4, kLazy | kPresent);
  EXPECT_FALSE(read(write_memory({{0x20000, 0x24000, 0}})));
}

TEST_F(PageImagesTest, LazyRangesHaveTheirPlaceInThePagesFile) {
  add_pages(0x10000, 2, kPresent);
  add_pages(0x20000, 3, kPresent | kLazy);
  add_pages(0x30000, 1, 1);  // in the parent's images
  add_pages(0x40000, 4, kPresent | kLazy, true);
  const auto images = read();
  ASSERT_TRUE(images) << images.error().message;
  ASSERT_EQ(images->ranges.size(), 2u);
  EXPECT_EQ(images->ranges[0].start, 0x20000u);
  EXPECT_EQ(images->ranges[0].end, 0x23000u);
  EXPECT_EQ(images->ranges[0].offset, 2 * kPageBytes);
  EXPECT_EQ(images->ranges[1].end, 0x44000u);
  EXPECT_EQ(images->ranges[1].offset, 5 * kPageBytes);
  ASSERT_TRUE(images->pages);
}

TEST_F(PageImagesTest, TaskWithoutLazyPagesNeedsNoPagesFile) {
  add_pages(0x10000, 2, kPresent);
  const auto images = read();
  ASSERT_TRUE(images) << images.error().message;
  EXPECT_TRUE(images->ranges.empty());
  EXPECT_FALSE(images->pages);
}

TEST_F(PageImagesTest, MissingImageIsNamed) {
  EXPECT_EQ(PageImages::open(*RestoreImages::open(directory_), "")->of(18).error().errno_value,
            ENOENT);
}

TEST_F(PageImagesTest, DamagedImagesAreRefused) {
  const std::string head = bytes_;
  const auto error_of = [this] {
    const auto images = read();
    return images ? 0 : images.error().errno_value;
  };
  for (const auto& [address, pages] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0x10001, 1}, {0x10000, 0}, {0x10000, UINT64_MAX / 2}, {uint64_t{1} << 60, 1}}) {
    bytes_ = head;
    add_pages(address, pages, kPresent | kLazy);
    EXPECT_EQ(error_of(), EPROTO) << address << " " << pages;
  }
  bytes_ = head;
  add_pages(0x20000, 2, kPresent | kLazy);
  add_pages(0x21000, 2, kPresent | kLazy);  // overlaps
  EXPECT_EQ(error_of(), EPROTO);
  bytes_ = head;
  add_pages(0x20000, 2, kLazy);  // left to a page server
  EXPECT_EQ(error_of(), EPROTO);
  bytes_ = head;
  add_pages(0x20000, 2, kPresent | kLazy);
  const std::string whole = bytes_;
  for (size_t size = 0; size < whole.size(); ++size) {
    if (size == head.size()) continue;  // a complete image without entries
    bytes_ = whole.substr(0, size);
    EXPECT_EQ(error_of(), EPROTO) << size;
  }
}

}  // namespace
}  // namespace ppmr
