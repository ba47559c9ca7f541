#include "fuse_target/keep/retention.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1'000'000 * kSecond;

RetentionCandidate sealed(const std::string& name, int64_t seconds_ago, uint64_t bytes = 100) {
  return {name, kNow - seconds_ago * kSecond, bytes, false};
}

std::vector<std::string> expired(const std::vector<RetentionCandidate>& kept,
                                 const RetentionLimits& limits) {
  std::vector<std::string> names;
  for (const size_t i : choose_expired(kept, limits, kNow)) names.push_back(kept[i].name);
  return names;
}

using Names = std::vector<std::string>;

TEST(Retention, SeriesAreNamesWithoutTheirNumberOrDate) {
  EXPECT_EQ(series_of("db"), "db");
  EXPECT_EQ(series_of("db.1"), "db");
  EXPECT_EQ(series_of("db1"), "db");
  EXPECT_EQ(series_of("db-2026-11-28"), "db");
  EXPECT_EQ(series_of("db-2026-11-28T10:00:05Z"), "db");
  EXPECT_EQ(series_of("2026-11-28"), "");
  EXPECT_EQ(series_of("job-7-b"), "job-7-b");
  EXPECT_EQ(series_of("db-"), "db-");
  EXPECT_EQ(series_of("T"), "T");
  EXPECT_EQ(series_of("MAT1"), "MAT");
  EXPECT_EQ(series_of(""), "");
}

TEST(Retention, RemovesNothingWithoutLimits) {
  EXPECT_EQ(expired({sealed("a.1", 1000), sealed("a.2", 1)}, {}), Names());
}

TEST(Retention, CountKeepsTheNewestOfEachSeries) {
  EXPECT_EQ(expired({sealed("a.3", 1), sealed("a.1", 30), sealed("a.2", 20), sealed("b.1", 99)},
                    {.count = 2}),
            Names({"a.1"}));
  EXPECT_EQ(expired({sealed("a.3", 1), sealed("a.1", 30), sealed("a.2", 20)}, {.count = 1}),
            Names({"a.1", "a.2"}));
}

TEST(Retention, AgeNeverRemovesTheNewestOfASeries) {
  EXPECT_EQ(expired({sealed("a.1", 300), sealed("a.2", 200), sealed("b", 400)},
                    {.age = std::chrono::seconds(100)}),
            Names({"a.1"}));
}

TEST(Retention, ClockThatWasSetBackMakesNoCheckpointOld) {
  EXPECT_EQ(expired({sealed("a.1", -5), sealed("a.2", -6)}, {.age = std::chrono::seconds(1)}),
            Names());
}

TEST(Retention, SizeRemovesTheOldestUntilTheRestFits) {
  const std::vector<RetentionCandidate> kept = {
      sealed("a.1", 40), sealed("a.2", 30), sealed("b.1", 35), sealed("b.2", 5), sealed("a.3", 1)};
  EXPECT_EQ(expired(kept, {.bytes = 500}), Names());
  EXPECT_EQ(expired(kept, {.bytes = 499}), Names({"a.1"}));
  EXPECT_EQ(expired(kept, {.bytes = 300}), Names({"a.1", "b.1"}));
  EXPECT_EQ(expired(kept, {.bytes = 1}), Names({"a.1", "b.1", "a.2"}))
      << "the newest of each series stays";
}

TEST(Retention, BytesThatAgeOrCountFreeAreNotFreedTwice) {
  EXPECT_EQ(expired({sealed("a.1", 40), sealed("a.2", 30), sealed("a.3", 1)},
                    {.age = std::chrono::seconds(35), .bytes = 200}),
            Names({"a.1"}));
}

TEST(Retention, KeepsWhatHasAReader) {
  auto read = sealed("a.1", 40);
  read.in_use = true;
  EXPECT_EQ(expired({read, sealed("a.2", 30), sealed("a.3", 1)}, {.count = 1}), Names({"a.2"}));
}

}  // namespace
}  // namespace ppmr
