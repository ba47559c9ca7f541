#include "mount/caller.h"

#include <gtest/gtest.h>

#include <sstream>

namespace ppmr {
namespace {

bool dying(const std::string& pending, const std::string& blocked, const std::string& ignored,
           const std::string& caught) {
  std::istringstream status(
      "State:\tD (disk sleep)\nSigQ:\t2/95830\nSigPnd:\t0000000000000000\n"
      "ShdPnd:\t" +
      pending + "\nSigBlk:\t" + blocked + "\nSigIgn:\t" + ignored + "\nSigCgt:\t" + caught + "\n");
  return is_dying(status);
}

constexpr char kNone[] = "0000000000000000";
constexpr char kKill[] = "0000000000000100";
constexpr char kTerm[] = "0000000000004000";
constexpr char kAlarm[] = "0000000000002000";
constexpr char kAlarmAndTerm[] = "0000000000006000";
constexpr char kChild[] = "0000000000010000";

TEST(CallerIsDying, IsTrueWithAPendingKill) { EXPECT_TRUE(dying(kKill, kNone, kNone, kNone)); }

TEST(CallerIsDying, IsTrueWithAnUnhandledPendingSignal) {
  EXPECT_TRUE(dying(kTerm, kNone, kNone, kNone));
  // With two signals pending, the kernel does not turn the second one into SIGKILL.
  EXPECT_TRUE(dying(kAlarmAndTerm, kNone, kNone, kAlarm));
}

TEST(CallerIsDying, IsFalseWhenThePendingSignalIsHandledBlockedOrIgnored) {
  EXPECT_FALSE(dying(kNone, kNone, kNone, kNone));
  EXPECT_FALSE(dying(kAlarm, kNone, kNone, kAlarm));
  EXPECT_FALSE(dying(kTerm, kTerm, kNone, kNone));
  EXPECT_FALSE(dying(kTerm, kNone, kTerm, kNone));
  EXPECT_FALSE(dying(kChild, kNone, kNone, kNone));
}

TEST(CallerIsDying, IsTrueWhenTheCallerHasEnded) { EXPECT_TRUE(caller_is_dying(1 << 30)); }

}  // namespace
}  // namespace ppmr
