#include "cli/screen/rates.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

using std::chrono::milliseconds;
constexpr RateMeter::Time kStart{};

TEST(RateMeter, IgnoresSamplesThatAreOlderThanASecond) {
  RateMeter meter;
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.add(0, kStart);
  EXPECT_EQ(meter.bytes_per_s(), 0) << "one sample is no rate";
  for (int i = 1; i <= 10; ++i) meter.add(100 * i, kStart + milliseconds(100 * i));
  EXPECT_DOUBLE_EQ(meter.bytes_per_s(), 1000);
  for (int i = 11; i <= 20; ++i) meter.add(1000, kStart + milliseconds(100 * i));
  EXPECT_DOUBLE_EQ(meter.bytes_per_s(), 0) << "nothing moved in the last second";
}

TEST(RateMeter, CounterThatWasResetBeginsAnew) {
  RateMeter meter;
  meter.add(1000, kStart);
  meter.add(10, kStart + milliseconds(100));
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.add(20, kStart + milliseconds(200));
  EXPECT_DOUBLE_EQ(meter.bytes_per_s(), 100);
}

TEST(Rates, TimeLeftIsTheMissingBytesDividedByTheRate) {
  EXPECT_EQ(seconds_left(100, 300, 100), 2);
  EXPECT_LT(seconds_left(100, 300, 0), 0);
  EXPECT_LT(seconds_left(400, 300, 100), 0) << "the estimate was too low";
}

TEST(Rates, PercentageIsEmptyWithoutATotal) {
  EXPECT_EQ(percentage(50, 100), "50%");
  EXPECT_EQ(percentage(999, 1000), "99%") << "100% only at the end";
  EXPECT_EQ(percentage(100, 100), "100%");
  EXPECT_EQ(percentage(5, 0), "");
  EXPECT_EQ(percentage(101, 100), "");
}

TEST(Rates, SparklineShowsTheLastValuesAtTheRight) {
  EXPECT_EQ(sparkline({0, 1, 50, 100}, 6, Charset::kUtf8), "   ▁▄█");
  EXPECT_EQ(sparkline({0, 1, 50, 100}, 2, Charset::kAscii), "=@");
  EXPECT_EQ(sparkline({}, 3, Charset::kAscii), "   ");
  EXPECT_EQ(sparkline({0, 0}, 2, Charset::kUtf8), "  ");
}

TEST(Rates, GaugeAlwaysHasItsWidth) {
  EXPECT_EQ(gauge(1, 2, 10), "[####....]");
  EXPECT_EQ(gauge(1, 1000, 10), "[#.......]") << "a little is not nothing";
  EXPECT_EQ(gauge(9, 2, 10), "[########]");
  EXPECT_EQ(gauge(0, 0, 10), "[........]");
  EXPECT_EQ(gauge(1, 2, 2), "");
}

}  // namespace
}  // namespace ppmr
