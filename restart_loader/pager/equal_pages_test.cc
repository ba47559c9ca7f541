#include "restart_loader/pager/equal_pages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "processes/memory/page_index.h"

namespace ppmr {
namespace {

// The pages of a process: the address of each page, and the letter that fills it.
using Pages = std::vector<std::pair<uint64_t, char>>;

class EqualPages : public testing::Test {
 protected:
  EqualPages() {
    std::string path = testing::TempDir() + "/equal-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
  }
  ~EqualPages() override { std::filesystem::remove_all(base_); }

  // Returns "page:owner@position" for each page of each process; the unit is a page.
  std::vector<std::string> found(const std::vector<Pages>& processes) {
    std::vector<Pagemap> maps(processes.size());
    std::vector<const Pagemap*> pagemaps;
    std::vector<std::string> paths;
    for (size_t i = 0; i < processes.size(); ++i) {
      paths.push_back(fmt::format("{}/pages-{}.img", base_, i));
      std::ofstream file(paths.back(), std::ios::binary);
      for (const auto& [page, letter] : processes[i]) {
        file << std::string(kPageBytes, letter);
        auto& entries = maps[i].entries;
        if (!entries.empty() && entries.back().end == page * kPageBytes) {
          entries.back().end += kPageBytes;
        } else {
          entries.push_back({page * kPageBytes, (page + 1) * kPageBytes, false, true, false});
        }
      }
      pagemaps.push_back(&maps[i]);
    }
    DumpedFiles files(paths);
    const auto parts = find_equal_pages(pagemaps, files);
    EXPECT_TRUE(parts) << parts.error().message;
    std::vector<std::string> texts;
    for (const auto& process : *parts) {
      std::string text;
      for (const DumpedPart& part : process) {
        text += fmt::format("{}-{}:{}@{} ", part.start / kPageBytes, part.end / kPageBytes,
                            part.owner, part.from / kPageBytes);
      }
      texts.push_back(text);
    }
    return texts;
  }

  std::string base_;
};

TEST_F(EqualPages, BelongToTheFirstProcess) {
  const auto texts = found({{{10, 'a'}, {11, 'b'}, {12, 'c'}, {20, 'd'}},
                            {{9, 'x'}, {10, 'a'}, {11, 'B'}, {12, 'c'}, {13, 'y'}},
                            {{9, 'x'}, {11, 'B'}, {20, 'd'}}});
  EXPECT_EQ(texts[0], "10-13:0@0 20-21:0@3 ");
  EXPECT_EQ(texts[1], "9-10:1@0 10-11:0@0 11-12:1@2 12-13:0@2 13-14:1@4 ");
  // The function compares page 11 with that of the first process only.
  EXPECT_EQ(texts[2], "9-10:1@0 11-12:2@1 20-21:0@3 ");
}

TEST_F(EqualPages, AreFoundForMoreProcessesThanOpenFiles) {
  std::vector<Pages> processes(300, {{10, 'a'}, {11, 'b'}});
  processes[0].clear();
  processes[70] = {{10, 'a'}, {11, 'c'}, {100, 'd'}};
  processes[299] = {{11, 'b'}, {100, 'd'}};
  const auto texts = found(processes);
  EXPECT_EQ(texts[0], "");
  EXPECT_EQ(texts[1], "10-12:1@0 ");
  EXPECT_EQ(texts[69], "10-12:1@0 ");
  EXPECT_EQ(texts[70], "10-11:1@0 11-12:70@1 100-101:70@2 ");
  EXPECT_EQ(texts[299], "11-12:1@1 100-101:70@2 ");
}

// The entry is longer than the function compares at once.
TEST_F(EqualPages, AreFoundInLongEntries) {
  Pages pages;
  for (uint64_t page = 0; page < 700; ++page) pages.emplace_back(page, static_cast<char>(page));
  Pages others = pages;
  others[300].second = 'z';
  others[699].second = 'z';
  const auto texts = found({pages, others});
  EXPECT_EQ(texts[1], "0-300:0@0 300-301:1@300 301-699:0@301 699-700:1@699 ");
}

TEST_F(EqualPages, FailIfAPagesFileIsTooShort) {
  const Pagemap pagemap{1, {{0, 2 * kPageBytes, false, true, false}}};
  const std::string path = base_ + "/pages-1.img";
  std::ofstream(path, std::ios::binary) << std::string(kPageBytes, 'a');
  DumpedFiles files({path, path});
  const auto parts = find_equal_pages({&pagemap, &pagemap}, files);
  ASSERT_FALSE(parts);
  EXPECT_EQ(parts.error().errno_value, EIO);
}

}  // namespace
}  // namespace ppmr
