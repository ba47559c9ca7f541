#include "cli/migration_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/rehearsal_report.h"

namespace ppmr {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using namespace std::chrono_literals;

MigrationOutcome move_with(std::chrono::milliseconds downtime,
                           std::optional<std::chrono::milliseconds> promised) {
  TreeOutcome tree;
  tree.plan.root.pid = 17;
  tree.plan.name = "java";
  tree.source.freeze_began_ns = 1'000'000'000;
  tree.target.running_ns = tree.source.freeze_began_ns + std::chrono::nanoseconds(downtime).count();
  tree.promised_downtime = promised;
  return {ExitCode::kSuccess, "", "1", {tree}};
}

TEST(MigrationReport, SaysWhichMoveHasNotKeptItsPromise) {
  const std::string text = summary_text({move_with(379ms, 300ms)});
  EXPECT_THAT(text, HasSubstr("warning: 17 java: stood still for 379 ms (dump -, seal "
                              "-, restart -), longer than --max-downtime (300 ms)"));
  const std::string kept = summary_text({move_with(299ms, 300ms), move_with(1s, std::nullopt)});
  EXPECT_THAT(kept, Not(HasSubstr("warning")));
  EXPECT_THAT(kept, MatchesRegex(".* DOWNTIME  PROMISED .* 299 ms +300 ms .* 1\\.0+ s +- .*"));
  EXPECT_THAT(summary_text({move_with(5s, std::nullopt)}), Not(HasSubstr("PROMISED")));
  EXPECT_THAT(summary_text({move_with(5s, std::nullopt)}), Not(HasSubstr("warning")));
}

TEST(MigrationReport, CopyHasTheResultCopiedInTableJsonAndMetric) {
  MigrationOutcome copy = move_with(379ms, 300ms);
  copy.trees[0].move.original_goes_on = true;
  EXPECT_THAT(summary_text({copy}), testing::AllOf(HasSubstr(" copied "), Not(HasSubstr("379"))));
  const auto tree = nlohmann::json::parse(summary_json({copy}, {}, ExitCode::kSuccess))["trees"][0];
  EXPECT_EQ(tree["result"], "copied");
  EXPECT_LT(tree["downtime_s"], 0);
  const auto note = outcome_note(copy);
  EXPECT_EQ(note.result, "copied");
  EXPECT_FALSE(note.seconds.contains("downtime"));
}

TEST(MigrationReport, HasThePromiseInItsJson) {
  const auto promised = [](std::optional<std::chrono::milliseconds> promise) {
    const auto text = summary_json({move_with(100ms, promise)}, {}, ExitCode::kSuccess);
    return nlohmann::json::parse(text)["trees"][0]["promised_s"];
  };
  EXPECT_EQ(promised(250ms), 0.25);
  EXPECT_TRUE(promised(std::nullopt).is_null());
}

TEST(MigrationReport, SaysHowUncertainADowntimeIsIfThatMatters) {
  const auto with_uncertainty = [](std::chrono::nanoseconds uncertainty) {
    MigrationOutcome move = move_with(200ms, std::nullopt);
    move.trees[0].clock_uncertainty_ns = uncertainty.count();
    return move;
  };
  EXPECT_THAT(summary_text({with_uncertainty(50ms)}), HasSubstr("200 ms +-50 ms"));
  EXPECT_THAT(summary_text({with_uncertainty(1ms)}), Not(HasSubstr("+-")));
  EXPECT_THAT(summary_text({with_uncertainty(-1ns)}), Not(HasSubstr("+-"))) << "unknown";
  const auto json = summary_json({with_uncertainty(1ms)}, {}, ExitCode::kSuccess);
  EXPECT_EQ(nlohmann::json::parse(json)["trees"][0]["clock_uncertainty_s"], 0.001);
}

MigrationOutcome rehearsal_of(pid_t pid, ExitCode exit_code) {
  TreeOutcome tree;
  tree.plan.root.pid = pid;
  tree.plan.name = "java";
  tree.move.is_rehearsal = true;
  tree.source.freeze_began_ns = 1'000'000'000;
  tree.goes_on_ns = tree.source.freeze_began_ns + std::chrono::nanoseconds(80ms).count();
  if (exit_code == ExitCode::kSuccess) {
    tree.decided_ns = tree.source.freeze_began_ns + std::chrono::nanoseconds(120ms).count();
  }
  tree.sealed.bytes = 1 << 20;
  return {exit_code, "", "1", {tree}};
}

TEST(RehearsalReport, SaysWhichTreesWouldMoveAndWhatItTakes) {
  const std::string text = rehearsal_text(
      {rehearsal_of(17, ExitCode::kSuccess), rehearsal_of(18, ExitCode::kMigrationAborted)},
      {"412 (worker)"});
  EXPECT_THAT(text, HasSubstr(" 17  java    would move   80 ms    120 ms"));
  EXPECT_THAT(text, HasSubstr(" 18  java    would stay   80 ms         -"));
  EXPECT_THAT(text, HasSubstr("412  worker  would stay       -         -"));
  EXPECT_THAT(text, HasSubstr("1 of 3 would move; nothing was moved\n"));
}

TEST(RehearsalReport, HasItsFiguresInItsJson) {
  const auto text = summary_json({rehearsal_of(17, ExitCode::kSuccess)}, {}, ExitCode::kSuccess);
  const auto tree = nlohmann::json::parse(text)["trees"][0];
  EXPECT_EQ(tree["result"], "would move");
  EXPECT_EQ(tree["rehearsal"], true);
  EXPECT_DOUBLE_EQ(tree["freeze_s"], 0.08);
  EXPECT_DOUBLE_EQ(tree["downtime_s"], 0.12);
}

TEST(EventText, SaysHowMuchAProcessHasWaitedForAProcessor) {
  const auto text = [](const nlohmann::json& shares) {
    return event_text(
        {{"event", "delayed"}, {"pid", 7}, {"name", "redis"}, {"waited_shares", shares}});
  };
  EXPECT_EQ(text({0.5, 0.1}),
            "7 redis: while its memory was copied, it waited for a processor 30% of its time (50% "
            "in the worst second)");
  EXPECT_EQ(text({0.5}),
            "7 redis: while its memory was copied, it waited for a processor 50% of its time");
  EXPECT_EQ(text({0.01, 0.05}), "") << "too little to show";
  EXPECT_EQ(text(nlohmann::json::array()), "") << "unknown";
}

}  // namespace
}  // namespace ppmr
