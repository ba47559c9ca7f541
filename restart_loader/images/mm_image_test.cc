#include "restart_loader/images/mm_image.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"

namespace ppmr {
namespace {

constexpr uint32_t kMmMagic = 0x57492820;
constexpr uint32_t kAnonymousPrivate = 1U << 9;
constexpr uint32_t kFilePrivate = 1U << 6;

// The arguments are numbers of pages.
criu::vma_entry area(uint64_t start, uint64_t end, uint32_t status = kAnonymousPrivate,
                     uint32_t flags = MAP_PRIVATE | MAP_ANONYMOUS) {
  criu::vma_entry entry;
  entry.set_start(start * kPageBytes);
  entry.set_end(end * kPageBytes);
  entry.set_status(status);
  entry.set_flags(flags);
  return entry;
}
PageRange range(uint64_t start, uint64_t end) { return {start * kPageBytes, end * kPageBytes, 0}; }

class MmImageTest : public testing::Test {
 protected:
  ~MmImageTest() override { std::filesystem::remove(path_); }

  Result<MmImage> image_of(const std::vector<criu::vma_entry>& areas) const {
    criu::mm_entry mm;
    for (const criu::vma_entry& entry : areas) *mm.add_vmas() = entry;
    // CRIU's other fields must survive.
    mm.mutable_unknown_fields()->append("\x08\x07");  // field 1: 7
    ImageWriter image(kMmMagic);
    image.add(mm);
    EXPECT_TRUE(image.write(path_));
    return MmImage::read(path_);
  }
  // Writes and reads the image, and returns its areas.
  std::string text_of(const MmImage& mm) const {
    EXPECT_TRUE(mm.write(path_));
    auto image = ImageReader::of(path_, read_whole_file(path_).value(), kMmMagic);
    criu::mm_entry entry;
    EXPECT_TRUE(image && image->read(entry));
    EXPECT_EQ(entry.unknown_fields(), "\x08\x07");
    std::string text;
    for (const criu::vma_entry& area : entry.vmas()) {
      text += fmt::format("{}-{} ", area.start() / kPageBytes, area.end() / kPageBytes);
    }
    return text;
  }

  const std::string path_ = testing::TempDir() + "/mm-1.img";
};

TEST_F(MmImageTest, AreasOfParentAndChildCoincideWhereTheyShare) {
  const std::vector<PageRange> shared = {range(1000, 1500), range(1600, 2000)};
  auto parent = image_of({area(1000, 2100)});
  auto child = image_of({area(900, 2000)});
  ASSERT_TRUE(parent && child);
  std::set<uint64_t> borders;
  parent->add_borders(shared, borders);
  child->add_borders(shared, borders);
  parent->split(shared, borders);
  child->split(shared, borders);
  EXPECT_EQ(text_of(*parent), "1000-1001 1001-2000 2000-2100 ");
  EXPECT_EQ(text_of(*child), "900-1000 1000-1001 1001-2000 ");
}

TEST_F(MmImageTest, AreasWithFewSharedPagesStayWhole) {
  const std::vector<PageRange> shared = {range(1010, 1012)};
  auto mm = image_of({area(1000, 2000), area(2000, 3000)});
  ASSERT_TRUE(mm);
  std::set<uint64_t> borders;
  mm->add_borders(shared, borders);
  EXPECT_TRUE(borders.empty());
}

TEST_F(MmImageTest, OnlyPrivateAnonymousAreasAreSplit) {
  const std::vector<PageRange> shared = {range(1000, 4000)};
  auto mm = image_of({area(1000, 2000, kFilePrivate), area(2000, 3000),
                      area(3000, 4000, kAnonymousPrivate, MAP_PRIVATE | MAP_GROWSDOWN),
                      area(5000, 6000)});
  ASSERT_TRUE(mm);
  const std::set<uint64_t> borders = {1500 * kPageBytes, 2500 * kPageBytes, 3500 * kPageBytes,
                                      5500 * kPageBytes};
  mm->split(shared, borders);
  EXPECT_EQ(text_of(*mm), "1000-2000 2000-2500 2500-3000 3000-4000 5000-6000 ");
}

TEST_F(MmImageTest, AnAreaIsNotSplitIntoVeryManyPieces) {
  auto mm = image_of({area(1000, 2000)});
  ASSERT_TRUE(mm);
  std::set<uint64_t> borders;
  for (uint64_t page = 1001; page < 1100; ++page) borders.insert(page * kPageBytes);
  mm->split({range(1000, 2000)}, borders);
  EXPECT_EQ(text_of(*mm), "1000-2000 ");
}

TEST_F(MmImageTest, ADamagedImageIsRefused) {
  const auto overlapping = image_of({area(1000, 2000), area(1500, 3000)});
  ASSERT_FALSE(overlapping);
  EXPECT_EQ(overlapping.error().errno_value, EPROTO);
  EXPECT_NE(overlapping.error().message.find(path_), std::string::npos);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  EXPECT_EQ(MmImage::read(path_).error().errno_value, EPROTO);
  std::filesystem::resize_file(path_, 8);
  EXPECT_EQ(MmImage::read(path_).error().errno_value, EPROTO);
  std::filesystem::resize_file(path_, 3);
  EXPECT_EQ(MmImage::read(path_).error().errno_value, EPROTO);
}

TEST_F(MmImageTest, LargeAreasThatAreOnlyReservedAreNotCounted) {
  const uint64_t large = (4ULL << 30) / kPageBytes;
  const auto with_rights = [&](uint64_t start, uint64_t pages, uint32_t prot) {
    criu::vma_entry entry = area(start, start + pages);
    entry.set_prot(prot);
    return entry;
  };
  auto mm = image_of({with_rights(1 * large, large, PROT_NONE),
                      with_rights(2 * large, large, PROT_READ | PROT_WRITE),
                      with_rights(3 * large, 16, PROT_NONE)});
  ASSERT_TRUE(mm);
  EXPECT_TRUE(mm->exempt_reservations());
  EXPECT_FALSE(mm->exempt_reservations()) << "nothing is left to change";
  (void)text_of(*mm);
  auto image = ImageReader::of(path_, read_whole_file(path_).value(), kMmMagic);
  criu::mm_entry entry;
  ASSERT_TRUE(image && image->read(entry));
  const uint32_t usual = MAP_PRIVATE | MAP_ANONYMOUS;
  EXPECT_EQ(entry.vmas(0).flags(), usual | MAP_NORESERVE);
  EXPECT_EQ(entry.vmas(1).flags(), usual);
  EXPECT_EQ(entry.vmas(2).flags(), usual);
}

}  // namespace
}  // namespace ppmr
