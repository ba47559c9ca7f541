#include "daemon/command_line/size_option.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace ppmr {
namespace {

using testing::HasSubstr;

TEST(Size, ParsesUnits) {
  EXPECT_EQ(*parse_size("0"), 0u);
  EXPECT_EQ(*parse_size("4096"), 4096u);
  EXPECT_EQ(*parse_size("64KiB"), 65536u);
  EXPECT_EQ(*parse_size("8MiB"), 8u << 20);
  for (const char* text : {"8M", "8m", "8MB", "8mb", "8 MB", "8mib", "8192k", "8388608B"}) {
    EXPECT_EQ(parse_size(text).value_or(0), 8u << 20) << text;
  }
  EXPECT_EQ(*parse_size(" 2 GiB "), 2ull << 30);
  EXPECT_EQ(*parse_size("16777215TiB"), 16777215ull << 40);
}

TEST(Size, RefusesInvalidText) {
  for (const char* text : {"", "MiB", "-1", "+1", "1.5GiB", "0x10", "10 MiBs", "1e6", "8i", "8Mi",
                           "8BB", "8XB", "1 2"}) {
    EXPECT_FALSE(parse_size(text).has_value()) << text;
  }
  EXPECT_THAT(parse_size("64XB").error().message,
              HasSubstr("'64XB': expected a whole number of B, KiB, MiB"));
}

TEST(Size, RefusesSizesThatOverflow) {
  EXPECT_FALSE(parse_size("16777216TiB").has_value());
  EXPECT_FALSE(parse_size("18446744073709551616").has_value());
  EXPECT_THAT(parse_size("99999999999999999999MiB").error().message, HasSubstr("too large"));
}

TEST(Time, ParsesSecondsAndUnits) {
  EXPECT_EQ(parse_time("5")->count(), 5000);
  EXPECT_EQ(parse_time("0.5")->count(), 500);
  EXPECT_EQ(parse_time("5s")->count(), 5000);
  EXPECT_EQ(parse_time("200ms")->count(), 200);
  EXPECT_EQ(parse_time("2 min")->count(), 120'000);
  EXPECT_EQ(parse_time("12h")->count(), 12 * 3'600'000);
  EXPECT_EQ(parse_time("7d")->count(), 7 * 86'400'000);
}

TEST(Time, RefusesInvalidText) {
  for (const char* text : {"", "s", "-1", "1w", "nan", "inf", "1e300", "5 5"}) {
    EXPECT_FALSE(parse_time(text).has_value()) << text;
  }
}

TEST(Format, PrintsSizesAndTimesInTheUnitThatFitsTheirMagnitude) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1536), "1.5 KiB");
  EXPECT_EQ(format_size((1ull << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_size(1ull << 30), "1.0 GiB");
  EXPECT_EQ(format_size(UINT64_MAX), "16.0 EiB");
  EXPECT_EQ(format_time(std::chrono::microseconds(420)), "0.4 ms");
  EXPECT_EQ(format_time(std::chrono::milliseconds(41)), "41 ms");
  EXPECT_EQ(format_time(std::chrono::microseconds(999'999)), "1.0 s");
  EXPECT_EQ(format_time(std::chrono::milliseconds(1234)), "1.2 s");
  EXPECT_EQ(format_time(std::chrono::seconds(243)), "4 min 3 s");
  EXPECT_EQ(format_time(std::chrono::seconds(7500)), "2 h 5 min");
}

TEST(SizeOption, SetsTheValueAndShowsTheDefault) {
  CLI::App app;
  size_t pool_size_bytes = 64 << 20;
  add_size_option(app, "--pool-size", pool_size_bytes, "memory of the pool");
  EXPECT_THAT(app.help(), HasSubstr("64MiB"));
  app.parse("--pool-size 8MiB");
  EXPECT_EQ(pool_size_bytes, 8u << 20);
  EXPECT_THROW(app.parse("--pool-size 8XB"), CLI::ValidationError);
}

}  // namespace
}  // namespace ppmr
