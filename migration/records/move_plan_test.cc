#include "migration/records/move_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using nlohmann::json;

void for_each_request(const std::function<void(const MoveRequest&)>& visit) {
  for (int bits = 0; bits < 64; ++bits) {
    visit({.eager = (bits & 1) != 0,
           .post_copy = (bits & 2) != 0,
           .leave_running = (bits & 4) != 0,
           .stop_and_copy = (bits & 8) != 0,
           .rehearse = (bits & 32) != 0,
           .container = (bits & 16) != 0});
  }
}

void for_each_plan(const std::function<void(const MovePlan&)>& visit) {
  for (const MemoryPath memory : {MemoryPath::kApart, MemoryPath::kImages}) {
    for (const MayRun may_run : {MayRun::kArrived, MayRun::kDecided, MayRun::kInPlace}) {
      for (const bool is_live : {false, true}) {
        for (const bool goes_on : {false, true}) {
          for (const bool rehearsal : {false, true}) {
            visit({memory, may_run, is_live, goes_on, rehearsal});
          }
        }
      }
    }
  }
}

std::string refusal(const MoveRequest& request, const MoveAbilities& abilities = {}) {
  const auto plan = plan_move(request, abilities);
  EXPECT_FALSE(plan);
  return plan ? "" : plan.error().message;
}

TEST(MovePlan, HasEachRowOfTheTable) {
  using enum MemoryPath;
  using enum MayRun;
  const MoveAbilities all;
  const MoveAbilities not_lazy{.target_restores_lazily = false};
  const MoveAbilities no_pipes{.pipes_hold_memory = false};
  const struct {
    MoveRequest request;
    MoveAbilities abilities;
    MovePlan expected;
  } rows[] = {
      {{}, all, {kApart, kArrived, true, false}},
      {{}, not_lazy, {kImages, kInPlace, false, false}},
      {{}, no_pipes, {kImages, kArrived, false, false}},
      {{.container = true}, all, {kApart, kArrived, true, false}},
      {{.stop_and_copy = true}, all, {kApart, kArrived, false, false}},
      {{.post_copy = true}, all, {kApart, kDecided, true, false}},
      {{.post_copy = true, .stop_and_copy = true}, all, {kApart, kDecided, false, false}},
      {{.post_copy = true, .container = true}, all, {kApart, kDecided, true, false}},
      {{.eager = true}, all, {kImages, kInPlace, false, false}},
      {{.eager = true}, no_pipes, {kImages, kInPlace, false, false}},
      {{.leave_running = true}, all, {kImages, kArrived, false, true}},
      {{.leave_running = true}, not_lazy, {kImages, kInPlace, false, true}},
      {{.eager = true, .leave_running = true}, all, {kImages, kInPlace, false, true}},
      {{.rehearse = true}, all, {kApart, kArrived, true, false, true}},
      {{.eager = true, .rehearse = true}, all, {kImages, kInPlace, false, false, true}},
      {{.rehearse = true, .container = true}, all, {kApart, kArrived, true, false, true}},
  };
  for (const auto& row : rows) {
    const auto plan = plan_move(row.request, row.abilities);
    ASSERT_TRUE(plan) << json(row.expected) << ": " << plan.error().message;
    EXPECT_EQ(*plan, row.expected) << json(*plan) << " instead of " << json(row.expected);
  }
}

TEST(MovePlan, OptionsThatExcludeEachOtherAreRefused) {
  EXPECT_EQ(refusal({.eager = true, .post_copy = true}), "--eager excludes --post-copy");
  EXPECT_EQ(refusal({.post_copy = true, .leave_running = true}),
            "--post-copy excludes --leave-running");
  EXPECT_EQ(refusal({.leave_running = true, .container = true}),
            "--runc: cannot copy a container (--leave-running), because its name is unique");
  EXPECT_NE(refusal({.leave_running = true, .rehearse = true}).find("--leave-running"),
            std::string::npos);
  EXPECT_NE(refusal({.post_copy = true, .rehearse = true}).find("--post-copy"), std::string::npos);
}

TEST(MovePlan, PostCopyNeedsMemoryApartFromTheImages) {
  for (const MoveAbilities& lacking : {MoveAbilities{.target_restores_lazily = false},
                                       MoveAbilities{.pipes_hold_memory = false}}) {
    EXPECT_NE(refusal({.post_copy = true}, lacking).find("--post-copy is not possible"),
              std::string::npos);
    const auto plan = plan_move({.post_copy = true}, lacking);
    EXPECT_EQ(plan.error().errno_value, EOPNOTSUPP);
  }
}

TEST(MovePlan, EveryRequestLeadsToAPlanThatPassesTheCheckOrIsRefused) {
  int plans = 0;
  for_each_request([&](const MoveRequest& request) {
    for (int bits = 0; bits < 4; ++bits) {
      const auto plan = plan_move(request, {.target_restores_lazily = (bits & 1) != 0,
                                            .pipes_hold_memory = (bits & 2) != 0});
      if (!plan) continue;
      ++plans;
      const Status checked = check_plan(*plan, request.container);
      EXPECT_TRUE(checked) << json(*plan) << ": " << checked.error().message;
      EXPECT_EQ(plan->original_goes_on, request.leave_running);
      EXPECT_EQ(plan->is_live, plan->moves_memory_apart() && !request.stop_and_copy);
      EXPECT_EQ(plan->may_run_before_memory(), request.post_copy);
      if (request.eager) {
        EXPECT_FALSE(plan->restores_lazily());
      }
    }
  });
  // Without a container and a rehearsal, there are 16 sets of options: 8 are possible without
  // --post-copy, and 2 with it if the nodes can do it. With a container, 4 and 2 are possible. With
  // and without a container, 4 sets can be rehearsed.
  EXPECT_EQ(plans, 8 * 4 + 2 + 4 * 4 + 2 + 2 * (4 * 4));
}

TEST(MovePlan, CheckAcceptsOnlyPlansThatSomeRequestLeadsTo) {
  for_each_plan([](const MovePlan& plan) {
    for (const bool container : {false, true}) {
      bool found = false;
      for_each_request([&](const MoveRequest& request) {
        if (request.container != container) return;
        for (int bits = 0; bits < 4; ++bits) {
          const auto made = plan_move(request, {.target_restores_lazily = (bits & 1) != 0,
                                                .pipes_hold_memory = (bits & 2) != 0});
          found = found || (made && *made == plan);
        }
      });
      EXPECT_EQ(check_plan(plan, container).has_value(), found) << json(plan) << container;
    }
  });
}

TEST(MovePlan, SurvivesConversionToJsonAndBack) {
  for_each_plan([](const MovePlan& plan) {
    const auto back = parse_plan(json(plan));
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(*back, plan);
  });
}

TEST(MovePlan, UnknownValuesAreRefused) {
  for (const auto& [field, wrong] : {std::pair<const char*, json>{"memory", "elsewhere"},
                                     {"may_run", "soon"},
                                     {"may_run", ""}}) {
    json packed = MovePlan{};
    packed[field] = wrong;
    EXPECT_FALSE(parse_plan(packed)) << packed;
  }
}

}  // namespace
}  // namespace ppmr
