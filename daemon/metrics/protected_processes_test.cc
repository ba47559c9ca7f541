#include "daemon/metrics/protected_processes.h"

#include <gtest/gtest.h>

#include <string>

#include "base/clock.h"

namespace ppmr {
namespace {

using nlohmann::json;

request::NoteEpoch report(const std::string& name, int64_t epoch) {
  return {.process = name,
          .pid = 17,
          .program = "redis",
          .epoch = epoch,
          .frozen_ns = realtime_ns(),
          .pause_ms = 20,
          .bytes = 1000,
          .sent_bytes = 10,
          .every_ms = 30'000};
}

TEST(ProtectedProcesses, LastReportCounts) {
  ProtectedProcesses processes;
  EXPECT_EQ(processes.status(), json::array());
  ASSERT_TRUE(processes.note(report("b", 1)));
  ASSERT_TRUE(processes.note(report("a", 7)));
  ASSERT_TRUE(processes.note(report("b", 2)));
  const json status = processes.status();
  ASSERT_EQ(status.size(), 2u);
  EXPECT_EQ(status[0].at("name"), "a");
  EXPECT_EQ(status[1].at("epoch"), 2);
}

TEST(ProtectedProcesses, AgeCountsFromTheFreeze) {
  ProtectedProcesses processes;
  request::NoteEpoch old = report("a", 1);
  old.frozen_ns = realtime_ns() - int64_t{90'000'000'000};
  ASSERT_TRUE(processes.note(old));
  EXPECT_GE(processes.status()[0].at("age_ms"), 90'000);
}

TEST(ProtectedProcesses, EndedProcessIsForgotten) {
  ProtectedProcesses processes;
  ASSERT_TRUE(processes.note(report("a", 1)));
  processes.forget({"a"});
  EXPECT_EQ(processes.status(), json::array());
}

TEST(ProtectedProcesses, RefusesANameThatIsEmptyOrTooLong) {
  ProtectedProcesses processes;
  EXPECT_EQ(processes.note(report("", 1)).error().errno_value, EINVAL);
  EXPECT_EQ(processes.note(report(std::string(65, 'n'), 1)).error().errno_value, EINVAL);
  EXPECT_EQ(processes.status(), json::array());
}

TEST(ProtectedProcesses, ListIsBounded) {
  ProtectedProcesses processes;
  for (size_t i = 0; i < kProtectedProcessesMax; ++i) {
    ASSERT_TRUE(processes.note(report("n" + std::to_string(i), 1)));
  }
  EXPECT_EQ(processes.note(report("one-more", 1)).error().errno_value, ENOSPC);
  EXPECT_TRUE(processes.note(report("n0", 2)));
}

}  // namespace
}  // namespace ppmr
