#include "restart_loader/pager/shared_pages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "base/whole_file.h"
#include "restart_loader/images/criu_image.h"
#include "restart_loader/images/criu_image.pb.h"
#include "restart_loader/images/pagemap_image.h"
#include "restart_loader/pager/page_images.h"

namespace ppmr {
namespace {

constexpr uint64_t kPage = kPageBytes;
// The first number of pages that CRIU has written itself.
constexpr uint64_t kFirstOwnValue = 1'000'000;
constexpr uint32_t kMmMagic = 0x57492820;
constexpr uint32_t kPstreeMagic = 0x50273030;

std::string text_of(const std::vector<PageRange>& ranges) {
  std::string text;
  for (const PageRange& range : ranges) {
    text += fmt::format("{}-{}@{} ", range.start / kPage, range.end / kPage, range.offset / kPage);
  }
  return text;
}

// The arguments are numbers of pages.
PageRange range(uint64_t start, uint64_t end, uint64_t offset) {
  return {start * kPage, end * kPage, offset * kPage};
}

TEST(SharedRanges, AreTheRangesThatAProcessSharesWithItsParent) {
  const PageIndex index{100 * kPage,
                        {{1, 1, {range(10, 20, 0), range(30, 40, 10)}},
                         {2, 2, {range(12, 15, 2), range(30, 35, 50), range(35, 42, 15)}},
                         {3, 3, {range(14, 22, 4), range(30, 31, 50)}}}};
  EXPECT_EQ(text_of(shared_ranges(index, {{1, 0}, {2, 1}, {3, 1}})), "12-20@2 35-40@15 ");
  EXPECT_EQ(text_of(shared_ranges(index, {{1, 0}, {2, 1}, {3, 2}})), "12-15@2 30-31@50 35-40@15 ");
}

TEST(SharedRanges, OneProcessSharesNothing) {
  EXPECT_TRUE(shared_ranges({kPage, {{1, 1, {range(10, 11, 0)}}}}, {{1, 0}}).empty());
  EXPECT_TRUE(shared_ranges({}, {}).empty());
  // The same page of the file at two addresses.
  EXPECT_TRUE(
      shared_ranges({kPage, {{1, 1, {range(10, 11, 0)}}, {2, 2, {range(11, 12, 0)}}}}, {{2, 1}})
          .empty());
}

TEST(SharedRanges, SplitTheRangesOfAProcess) {
  const std::vector<PageRange> shared = {range(12, 14, 2), range(16, 18, 90), range(19, 30, 9)};
  const std::vector<PageRange> own = {range(10, 20, 0), range(40, 41, 70)};
  EXPECT_EQ(text_of(shared_parts(own, shared)), "12-14@2 19-20@9 ");
  EXPECT_EQ(text_of(unshared_parts(own, shared)), "10-12@0 14-19@4 40-41@70 ");
}

// A tree of processes with random memory, with the images and the page index of a dump.
class SharedImagesTest : public testing::Test {
 protected:
  SharedImagesTest() {
    std::string path = testing::TempDir() + "/shared-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
    std::filesystem::create_directories(images());
  }
  ~SharedImagesTest() override { std::filesystem::remove_all(base_); }
  std::string images() const { return base_ + "/from"; }
  std::string directory() const { return base_ + "/to"; }

  // The other processes inherit the pages of process 1, or replace them. `contents_`: the value in
  // each page.
  void make_tree(int processes, uint64_t pages, uint32_t seed) {
    std::mt19937 random(seed);
    std::ofstream memory(base_ + "/memory", std::ios::binary);
    const auto add = [](std::vector<PageRange>& ranges, uint64_t page, uint64_t offset) {
      if (!ranges.empty() && ranges.back().end == page * kPage &&
          ranges.back().offset + ranges.back().bytes() == offset * kPage) {
        ranges.back().end += kPage;
      } else {
        ranges.push_back(range(page, page + 1, offset));
      }
    };
    std::map<uint64_t, uint64_t> of_parent;
    uint64_t next = 0;  // the next place in the memory file
    for (int pid = 1; pid <= processes; ++pid) {
      IndexedTask task{pid, pid, {}};
      Pagemap pagemap{static_cast<uint32_t>(pid), {}};
      std::ofstream own(fmt::format("{}/pages-{}.img", images(), pid), std::ios::binary);
      for (uint64_t page = 10; page < 10 + pages; ++page) {
        const uint32_t kind = random() % 8;
        if (kind == 0) continue;
        const bool present = kind == 1;
        uint64_t value = 0;
        if (present) {
          // Some pages have the same bytes in all processes.
          value = kFirstOwnValue + (page % 3 == 0 ? page : random());
          write_page(own, value);
        } else if (pid > 1 && kind > 3 && of_parent.contains(page)) {
          value = of_parent[page];
          add(task.ranges, page, value);
        } else {
          value = next++;
          write_page(memory, value);
          add(task.ranges, page, value);
          if (pid == 1) of_parent[page] = value;
        }
        contents_[pid][page] = value;
        auto& entries = pagemap.entries;
        if (!entries.empty() && entries.back().end == page * kPage &&
            entries.back().present == present) {
          entries.back().end += kPage;
        } else {
          entries.push_back({page * kPage, (page + 1) * kPage, !present, present, false});
        }
      }
      index_.tasks.push_back(std::move(task));
      ASSERT_TRUE(write_pagemap(fmt::format("{}/pagemap-{}.img", images(), pid), pagemap));
      ImageWriter mm(kMmMagic);
      criu::mm_entry areas;
      criu::vma_entry& area = *areas.add_vmas();
      area.set_start(0);
      area.set_end((10 + pages) * kPage);
      area.set_flags(MAP_PRIVATE | MAP_ANONYMOUS);
      area.set_status(1U << 9);
      mm.add(areas);
      ASSERT_TRUE(mm.write(fmt::format("{}/mm-{}.img", images(), pid)));
    }
    ImageWriter pstree(kPstreeMagic);
    for (int pid = 1; pid <= processes; ++pid) {
      criu::pstree_entry task;
      task.set_pid(static_cast<uint32_t>(pid));
      task.set_ppid(pid > 1 ? 1 : 0);
      pstree.add(task);
    }
    ASSERT_TRUE(pstree.write(images() + "/pstree.img"));
    index_.memory_bytes = next * kPage;
    ASSERT_TRUE(write_page_index(images() + "/" + kPageIndexFile, index_));
  }
  // Makes a bundle of the images with at most `bytes_max`.
  UniqueFd make_bundle(uint64_t bytes_max) const {
    std::vector<BundleWriter::File> files;
    for (const auto& entry : std::filesystem::directory_iterator(images())) {
      files.push_back({entry.path().filename(), entry.file_size(), entry.file_size() <= bytes_max});
    }
    auto writer = BundleWriter::create(files, /*is_flat=*/true);
    EXPECT_TRUE(writer);
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string text = text_of_file(images() + "/" + files[i].name);
      std::memcpy(writer->bytes_of(i).data(), text.data(), writer->bytes_of(i).size());
    }
    return std::move(*writer->finish());
  }
  static std::string path_of(const UniqueFd& file) {
    return file ? fmt::format("/proc/self/fd/{}", file.get()) : "";
  }
  static std::string text_of_file(const std::string& path) {
    auto text = read_whole_file(path);
    EXPECT_TRUE(text) << text.error().message;
    return text ? *text : "";
  }
  // Reads a new pagemap. Unlike the entries of a dump, entries that CRIU skips may overlap the next
  // entry.
  Pagemap read_new(int pid) const {
    std::ifstream file(fmt::format("{}/pagemap-{}.img", directory(), pid), std::ios::binary);
    Pagemap pagemap;
    file.seekg(2 * sizeof(uint32_t));
    uint32_t length = 0;
    for (bool is_head = true; file.read(reinterpret_cast<char*>(&length), sizeof(length));
         is_head = false) {
      std::string bytes(length, '\0');
      file.read(bytes.data(), length);
      if (is_head) {
        criu::pagemap_head head;
        EXPECT_TRUE(head.ParseFromString(bytes));
        pagemap.pages_id = head.pages_id();
        continue;
      }
      criu::pagemap_entry entry;
      EXPECT_TRUE(entry.ParseFromString(bytes));
      EXPECT_TRUE(pagemap.entries.empty() || pagemap.entries.back().start <= entry.vaddr());
      pagemap.entries.push_back({entry.vaddr(), entry.vaddr() + entry.nr_pages() * kPage,
                                 (entry.flags() & 2) != 0, (entry.flags() & 4) != 0,
                                 (entry.flags() & 1) != 0});
    }
    return pagemap;
  }
  // Counts the pages with repeated bytes. Only pages at one address have the same bytes.
  uint64_t repeated_pages() const {
    const std::string path = fmt::format("{}/pages-{}.img", directory(), read_new(1).pages_id);
    std::ifstream file(path, std::ios::binary);
    std::vector<uint64_t> words(kPage / sizeof(uint64_t));
    std::set<uint64_t> values;
    uint64_t repeated = 0;
    while (file.read(reinterpret_cast<char*>(words.data()), kPage)) {
      repeated += values.insert(words.front()).second ? 0 : 1;
    }
    EXPECT_GT(values.size(), 100u);
    return repeated;
  }
  void expect_all_is_left_to(const PageImages& pager) const {
    for (const IndexedTask& task : index_.tasks) {
      const auto left = pager.of(task.pid);
      ASSERT_TRUE(left) << left.error().message;
      uint64_t bytes = 0;
      for (const PageRange& part : left->ranges) bytes += part.bytes();
      uint64_t indexed = 0;
      for (const PageRange& part : task.ranges) indexed += part.bytes();
      EXPECT_EQ(bytes, indexed) << "process " << task.pid;
    }
  }
  static void write_page(std::ofstream& file, uint64_t value) {
    const std::vector<uint64_t> words(kPage / sizeof(value), value);
    file.write(reinterpret_cast<const char*>(words.data()), kPage);
  }

  std::string base_;
  PageIndex index_;
  std::map<int, std::map<uint64_t, uint64_t>> contents_;
};

enum class Source { kCheckpoint, kBundle };

// Reads the new images as CRIU does, and the other pages as the pager does.
class SharedImagesOfEachSource : public SharedImagesTest,
                                 public testing::WithParamInterface<Source> {};
INSTANTIATE_TEST_SUITE_P(All, SharedImagesOfEachSource,
                         testing::Values(Source::kCheckpoint, Source::kBundle));

TEST_P(SharedImagesOfEachSource, EveryPageIsInTheImagesOrLeftToThePager) {
  for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
    make_tree(1 + static_cast<int>(seed), 200 * seed, seed);
    const UniqueFd bundle = GetParam() == Source::kBundle ? make_bundle(1 << 20) : UniqueFd();
    auto from = RestoreImages::open(images(), path_of(bundle));
    ASSERT_TRUE(from) << from.error().message;
    auto pager = PageImages::open(std::move(*from), base_ + "/memory");
    ASSERT_TRUE(pager) << pager.error().message;
    ASSERT_TRUE(pager->prepare_images(directory()));
    uint64_t shared_pages = 0;
    for (const auto& [pid, contents] : contents_) {
      const Pagemap pagemap = read_new(pid);
      std::map<uint64_t, uint64_t> found;
      std::ifstream file(fmt::format("{}/pages-{}.img", directory(), pagemap.pages_id),
                         std::ios::binary);
      ASSERT_TRUE(file);
      uint64_t lazy_pages = 0;
      for (const PagemapEntry& entry : pagemap.entries) {
        ASSERT_FALSE(entry.in_parent);
        if (entry.lazy && entry.present)
          file.seekg(static_cast<std::streamoff>(entry.bytes()), std::ios::cur);
        if (entry.lazy && !entry.present) lazy_pages += entry.bytes() / kPage;
        for (uint64_t at = entry.start; !entry.lazy && at < entry.end; at += kPage) {
          std::vector<uint64_t> words(kPage / sizeof(uint64_t));
          file.read(reinterpret_cast<char*>(words.data()), kPage);
          ASSERT_EQ(words.front(), words.back());
          ASSERT_TRUE(found.emplace(at / kPage, words.front()).second);
          shared_pages += words.front() < kFirstOwnValue ? 1 : 0;
        }
      }
      const auto left = pager->of(pid);
      ASSERT_TRUE(left) << left.error().message;
      uint64_t left_pages = 0;
      for (const PageRange& part : left->ranges) {
        for (uint64_t at = part.start; at < part.end; at += kPage, ++left_pages) {
          std::vector<uint64_t> words(kPage / sizeof(uint64_t));
          const auto bytes = left->pages->read(part.offset + at - part.start, kPage,
                                               reinterpret_cast<std::byte*>(words.data()));
          ASSERT_TRUE(bytes) << bytes.error().message;
          std::memcpy(words.data(), *bytes, kPage);
          ASSERT_TRUE(found.emplace(at / kPage, words.front()).second);
        }
      }
      ASSERT_EQ(left_pages, lazy_pages);
      EXPECT_EQ(found, contents) << "process " << pid << " seed " << seed;
    }
    EXPECT_EQ(repeated_pages(), 0u) << "in the pages file";
    EXPECT_GT(shared_pages, 100u);
    pager->criu_has_ended();
    std::filesystem::remove_all(directory());
    contents_.clear();
    index_ = {};
  }
}

TEST_F(SharedImagesTest, BundleTakesThePlaceOfTheCheckpoint) {
  make_tree(1, 50, 1);
  const std::string mm = text_of_file(images() + "/mm-1.img");
  const UniqueFd bundle = make_bundle(1 << 20);
  std::filesystem::resize_file(images() + "/mm-1.img", 0);
  auto from = RestoreImages::open(images(), path_of(bundle));
  ASSERT_TRUE(from) << from.error().message;
  EXPECT_EQ(text_of_file(from->path_of("mm-1.img")), mm);
  auto pager = PageImages::open(std::move(*from), base_ + "/memory");
  ASSERT_TRUE(pager->prepare_images(directory()));
  EXPECT_EQ(text_of_file(directory() + "/mm-1.img"), mm);
  EXPECT_TRUE(std::filesystem::exists(directory() + "/pages-1.img"));
  // CRIU needs nothing else, so it does not look into the checkpoint.
  std::ofstream(images() + "/later.img") << "x";
  EXPECT_FALSE(std::filesystem::exists(directory() + "/later.img"));
}

TEST_F(SharedImagesTest, LargeImagesStayInTheCheckpoint) {
  make_tree(1, 50, 1);
  const std::string pages = text_of_file(images() + "/pages-1.img");
  const UniqueFd bundle = make_bundle(4000);
  auto from = RestoreImages::open(images(), path_of(bundle));
  ASSERT_TRUE(from) << from.error().message;
  EXPECT_EQ(from->path_of("pages-1.img"), images() + "/pages-1.img");
  ASSERT_TRUE(from->publish(directory()));
  EXPECT_EQ(text_of_file(directory() + "/pages-1.img"), pages);
  EXPECT_EQ(text_of_file(directory() + "/mm-1.img"), text_of_file(images() + "/mm-1.img"));
  from->free_memory();
  EXPECT_EQ(from->path_of("mm-1.img"), images() + "/mm-1.img");
}

TEST_F(SharedImagesTest, AreNotMadeIfNothingIsShared) {
  make_tree(1, 50, 1);
  auto pager = PageImages::open(*RestoreImages::open(images()), base_ + "/memory");
  ASSERT_TRUE(pager);
  ASSERT_TRUE(pager->prepare_images(directory()));
  EXPECT_FALSE(std::filesystem::exists(directory()));
}

TEST_F(SharedImagesTest, AreNotMadeIfTheMemoryFileIsTooShort) {
  make_tree(3, 50, 1);
  std::filesystem::resize_file(base_ + "/memory", kPage);
  auto pager = PageImages::open(*RestoreImages::open(images()), base_ + "/memory");
  ASSERT_TRUE(pager);
  const Status shared = pager->prepare_images(directory());
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().errno_value, EIO);
  EXPECT_FALSE(std::filesystem::exists(directory()));
  expect_all_is_left_to(*pager);
}

// CRIU then restores the images of the checkpoint, which lack the shared pages.
TEST_F(SharedImagesTest, LeaveAllPagesToThePagerIfTheyCannotBePublished) {
  make_tree(3, 50, 1);
  auto pager = PageImages::open(*RestoreImages::open(images()), base_ + "/memory");
  ASSERT_TRUE(pager);
  ASSERT_FALSE(pager->prepare_images(base_ + "/absent/to"));
  expect_all_is_left_to(*pager);
}

}  // namespace
}  // namespace ppmr
