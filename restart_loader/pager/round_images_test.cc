#include "restart_loader/pager/round_images.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>

#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;
constexpr uint64_t kFilePages = PageFiles::kFileSpanBytes / kPage;
constexpr uint32_t kMmMagic = 0x57492820;
constexpr uint32_t kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
constexpr uint32_t kAnonymousPrivate = 1U << 9;
constexpr uint32_t kLazy = 2, kPresent = 4, kInParent = 1;

struct Entry {
  uint64_t start;
  uint64_t end;
  uint32_t flags;
};

// The arguments are numbers of pages.
PageRange range(uint64_t start, uint64_t end, uint64_t offset) {
  return {start * kPage, end * kPage, offset * kPage};
}

// Returns the places as FILE:PAGE.
std::string text_of(const std::vector<PageRange>& ranges) {
  std::string text;
  for (const PageRange& part : ranges) {
    const uint64_t place = part.offset / kPage;
    text += fmt::format("{}-{}@{}:{} ", part.start / kPage, part.end / kPage, place / kFilePages,
                        place % kFilePages);
  }
  return text;
}

std::string text_of(const Pagemap& pagemap) {
  std::string text;
  for (const PagemapEntry& entry : pagemap.entries) {
    text +=
        fmt::format("{}-{}{}{}{} ", entry.start / kPage, entry.end / kPage, entry.lazy ? "l" : "",
                    entry.present ? "p" : "", entry.in_parent ? "r" : "");
  }
  return text;
}

class RoundImagesTest : public testing::Test {
 protected:
  RoundImagesTest() {
    std::string path = testing::TempDir() + "/rounds-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
    std::ofstream(base_ + "/memory") << "memory" << std::flush;
    files_.add(*PageFile::open(base_ + "/memory"));
    for (const char* name : {"/0", "/1", "/last"}) {
      std::filesystem::create_directory(base_ + name);
    }
    std::filesystem::create_symlink("../0", base_ + "/1/parent");
    std::filesystem::create_symlink("../1", last() + "/parent");
    add_areas(17, {{0, 1000, kPrivate}});
    add_areas(18, {{0, 1000, kPrivate}});
  }
  ~RoundImagesTest() override { std::filesystem::remove_all(base_); }

  std::string last() const { return base_ + "/last"; }
  void dump(const std::string& round, int pid, const std::vector<Entry>& entries) {
    Pagemap pagemap{static_cast<uint32_t>(pid), {}};
    for (const auto& [start, end, flags] : entries) {
      pagemap.entries.push_back({start * kPage, end * kPage, (flags & kLazy) != 0,
                                 (flags & kPresent) != 0, (flags & kInParent) != 0});
    }
    const std::string directory = base_ + "/" + round;
    ASSERT_TRUE(write_pagemap(fmt::format("{}/pagemap-{}.img", directory, pid), pagemap));
    std::ofstream(fmt::format("{}/pages-{}.img", directory, pid)) << round << pid << std::flush;
  }
  struct Area {
    uint64_t start;
    uint64_t end;
    uint32_t flags;
    uint32_t status = kAnonymousPrivate;
  };
  void add_areas(int pid, const std::vector<Area>& areas) {
    criu::mm_entry mm;
    for (const Area& area : areas) {
      criu::vma_entry& entry = *mm.add_vmas();
      entry.set_start(area.start * kPage);
      entry.set_end(area.end * kPage);
      entry.set_flags(area.flags);
      entry.set_status(area.status);
    }
    ImageWriter image(kMmMagic);
    image.add(mm);
    ASSERT_TRUE(image.write(fmt::format("{}/mm-{}.img", last(), pid)));
  }
  Result<RoundImages> read(std::vector<IndexedTask> tasks) {
    return read_round_images(last(), {100 * kPage, std::move(tasks)}, files_);
  }
  // Returns the bytes of the file that begins at this place, up to the end of the file.
  std::string bytes_at(uint64_t place) {
    std::array<std::byte, 3> scratch{};
    const auto bytes = files_.read(place, 3, scratch.data());
    if (!bytes) return bytes.error().message;
    return {reinterpret_cast<const char*>(*bytes), 3};
  }

  std::string base_;
  PageFiles files_;
};

TEST_F(RoundImagesTest, PagesAreInTheRoundThatCopiedThemLast) {
  dump("0", 17, {{10, 20, kPresent | kLazy}, {30, 40, kPresent | kLazy}});
  dump("1", 17,
       {{10, 12, kInParent}, {12, 14, kPresent | kLazy}, {14, 20, kInParent}, {30, 35, kInParent}});
  dump("last", 17,
       {{10, 13, kInParent},
        {13, 15, kLazy},
        {15, 20, kInParent},
        {30, 31, kPresent},
        {31, 35, kInParent}});
  const auto rounds = read({{17, 17, {range(13, 15, 7)}}});
  ASSERT_TRUE(rounds) << rounds.error().message;
  // Round 0 is file 1, because the search finds its pages first.
  EXPECT_EQ(text_of(rounds->index.tasks[0].ranges),
            "10-12@1:0 12-13@2:0 13-15@0:7 15-20@1:5 31-35@1:11 ");
  EXPECT_EQ(text_of(rounds->pagemaps.at(17)), "10-13l 13-15l 15-20l 30-31p 31-35l ");
  EXPECT_EQ(bytes_at(0), "mem");
  EXPECT_EQ(bytes_at(PageFiles::kFileSpanBytes), "017");
  EXPECT_EQ(bytes_at(2 * PageFiles::kFileSpanBytes), "117");
}

TEST_F(RoundImagesTest, CriuRestoresPagesThatCannotBeLazy) {
  add_areas(17, {{0, 20, kPrivate},
                 {20, 22, MAP_PRIVATE, 1U << 6},  // a mapping of a file
                 {22, 24, kPrivate | MAP_LOCKED},
                 {24, 26, kPrivate | MAP_HUGETLB},
                 {26, 28, kPrivate, kAnonymousPrivate | 1U << 3},  // vdso
                 {30, 40, kPrivate | MAP_GROWSDOWN}});
  dump("0", 17, {{10, 40, kPresent}});
  dump("1", 17, {{10, 40, kInParent}});
  dump("last", 17, {{18, 32, kInParent}});
  const auto rounds = read({{17, 17, {}}});
  ASSERT_TRUE(rounds) << rounds.error().message;
  EXPECT_EQ(text_of(rounds->pagemaps.at(17)), "18-20l 20-30r 30-32l ");
  EXPECT_EQ(text_of(rounds->index.tasks[0].ranges), "18-20@1:8 30-32@1:20 ");
}

TEST_F(RoundImagesTest, ProcessMayHaveBegunAfterARound) {
  dump("0", 17, {{10, 20, kPresent | kLazy}});
  dump("1", 17, {{10, 20, kInParent}});
  dump("last", 17, {{10, 20, kInParent}});
  dump("1", 18, {{10, 20, kPresent | kLazy}});
  dump("last", 18, {{10, 15, kInParent}, {15, 20, kLazy}});
  dump("last", 19, {{10, 20, kLazy}});
  const auto rounds =
      read({{17, 17, {}}, {18, 18, {range(15, 20, 0)}}, {19, 19, {range(10, 20, 5)}}});
  ASSERT_TRUE(rounds) << rounds.error().message;
  EXPECT_EQ(text_of(rounds->index.tasks[0].ranges), "10-20@1:0 ");
  EXPECT_EQ(text_of(rounds->index.tasks[1].ranges), "10-15@2:0 15-20@0:0 ");
  EXPECT_EQ(text_of(rounds->index.tasks[2].ranges), "10-20@0:5 ");
  EXPECT_FALSE(rounds->pagemaps.contains(19)) << "the image needs no change";
}

TEST_F(RoundImagesTest, SharedPagesHaveOnePlace) {
  for (const int pid : {17, 18}) {
    dump("0", pid, {{10, 20, kPresent | kLazy}});
    dump("1", pid, {{10, 20, kInParent}});
    dump("last", pid, {{10, 20, kInParent}});
  }
  const PageIndex shared{100 * kPage,
                         {{17, 17, {range(10, 20, 0)}},
                          {18, 18, {range(10, 13, 0), range(13, 15, 50), range(16, 20, 6)}}}};
  ASSERT_TRUE(write_page_index(last() + "/" + kRoundsIndexFile, shared));
  const auto rounds = read({{17, 17, {}}, {18, 18, {}}});
  ASSERT_TRUE(rounds) << rounds.error().message;
  EXPECT_EQ(text_of(rounds->index.tasks[0].ranges), "10-20@1:0 ");
  EXPECT_EQ(text_of(rounds->index.tasks[1].ranges), "10-13@1:0 13-15@2:3 15-16@2:5 16-20@1:6 ");
}

TEST_F(RoundImagesTest, PageThatNoRoundHasIsAnError) {
  const auto error_of = [this] {
    const auto rounds = read({{17, 17, {}}});
    return rounds ? "" : fmt::format("{} {}", rounds.error().errno_value, rounds.error().message);
  };
  dump("last", 17, {{10, 20, kInParent}});
  EXPECT_NE(error_of().find("between 0xa000 and 0x14000"), std::string::npos) << error_of();
  dump("1", 17, {{10, 19, kPresent}});
  EXPECT_NE(error_of().find("last/pagemap-17.img"), std::string::npos) << error_of();
  dump("1", 17, {{10, 20, kInParent}});
  EXPECT_NE(error_of().find("1/pagemap-17.img"), std::string::npos) << error_of();
  dump("1", 17, {{10, 20, kLazy}});
  EXPECT_NE(error_of().find("1/pagemap-17.img"), std::string::npos) << error_of();
  dump("0", 17, {{10, 20, kPresent}});
  dump("1", 17, {{10, 20, kInParent}});
  EXPECT_EQ(error_of(), "");
}

TEST_F(RoundImagesTest, RoundsInACircleAreAnError) {
  std::filesystem::create_symlink("../last", base_ + "/0/parent");
  dump("last", 17, {{10, 20, kInParent}});
  const auto rounds = read({{17, 17, {}}});
  ASSERT_FALSE(rounds);
  EXPECT_EQ(rounds.error().errno_value, ELOOP);
}

TEST_F(RoundImagesTest, DumpWithoutParentFollowsNoRounds) {
  EXPECT_TRUE(follows_rounds(last()));
  EXPECT_FALSE(follows_rounds(base_ + "/0"));
  EXPECT_FALSE(follows_rounds(base_ + "/none"));
}

}  // namespace
}  // namespace ppmr
