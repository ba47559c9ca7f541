// Tests the unit of a control group, and whether systemd starts a unit again. The texts are those
// of systemd 252.
#include "preflight/systemd_unit.h"

#include <gtest/gtest.h>

namespace ppmr {
namespace {

TEST(SystemdUnit, UnitStandsAfterTheSlicesOfAControlGroup) {
  struct Case {
    const char* cgroup;
    UnitName unit;
  };
  const Case cases[] = {
      {"0::/system.slice/web.service\n", {"web.service"}},
      {"0::/system.slice/system-web.slice/web@a\\x2db.service/workers\n", {"web@a\\x2db.service"}},
      {"9:name=systemd:/\n8:pids:/\n0::/system.slice/web.service\n", {"web.service"}},
      {"4:memory:/x\n1:name=systemd:/system.slice/web.service\n0::/\n", {"web.service"}},
      {"0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service\n",
       {"x.service", true, 1000}},
      {"0::/system.slice/_cpu.service\n", {"cpu.service"}},
      // Nothing starts these again.
      {"0::/user.slice/user-0.slice/session-3.scope\n", {}},
      {"0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", {}},
      {"0::/system.slice/docker-12ab.scope/system.slice/web.service\n", {}},
      {"0::/kubepods/pod1/web.service\n", {}},
      {"0::/../../system.slice/web.service\n", {}},
      {"0::/\n", {}},
      {"", {}},
      // No names of systemd.
      {"0::/system.slice/--help.service\n", {}},
      {"0::/system.slice/a b.service\n", {}},
      {"0::/user.slice/user@1x.service/app.slice/x.service\n", {}},
  };
  for (const Case& one : cases) {
    const UnitName found = find_unit(one.cgroup);
    EXPECT_EQ(found, one.unit) << one.cgroup << found.name;
  }
}

TEST(SystemdUnit, RestartFollowsTheTableOfSystemd) {
  struct Case {
    const char* restart;
    UnitRestart moved, waits;  // the main process is moved; waits for the tree
  };
  const Case cases[] = {{"no", UnitRestart::kNo, UnitRestart::kNo},
                        {"always", UnitRestart::kSurely, UnitRestart::kSurely},
                        {"on-success", UnitRestart::kNo, UnitRestart::kPerhaps},
                        {"on-failure", UnitRestart::kSurely, UnitRestart::kPerhaps},
                        {"on-abnormal", UnitRestart::kSurely, UnitRestart::kPerhaps},
                        {"on-abort", UnitRestart::kSurely, UnitRestart::kPerhaps},
                        {"on-watchdog", UnitRestart::kNo, UnitRestart::kPerhaps},
                        {"a-new-word", UnitRestart::kPerhaps, UnitRestart::kPerhaps}};
  for (const Case& one : cases) {
    UnitFacts facts{.active_state = "active", .restart = one.restart};
    EXPECT_EQ(judge_restart(facts, true), one.moved) << one.restart;
    EXPECT_EQ(judge_restart(facts, false), one.waits) << one.restart;
    facts.active_state = "deactivating";
    EXPECT_EQ(judge_restart(facts, true), UnitRestart::kNo) << one.restart;
    facts.problem = "no answer";
    EXPECT_EQ(judge_restart(facts, true), UnitRestart::kPerhaps) << one.restart;
  }
}

TEST(SystemdUnit, ExitStatusListsChangeWhatSigkillMeans) {
  const UnitFacts always{.active_state = "active", .restart = "always"};
  UnitFacts facts = always;
  facts.prevents = {"5", "KILL"};
  EXPECT_EQ(judge_restart(facts, true), UnitRestart::kNo);
  facts = always;
  facts.restart = "no";
  facts.forces = {"KILL"};
  EXPECT_EQ(judge_restart(facts, true), UnitRestart::kSurely);
  facts = always;
  facts.restart = "on-failure";
  facts.successes = {"KILL"};
  EXPECT_EQ(judge_restart(facts, true), UnitRestart::kNo);
  facts.restart = "on-success";
  EXPECT_EQ(judge_restart(facts, true), UnitRestart::kSurely);
}

TEST(SystemdUnit, PropertiesAreParsed) {
  UnitFacts facts;
  parse_unit_properties(
      "Restart=always\nRestartPreventExitStatus=5 KILL\nSuccessExitStatus=\nMainPID=122\n"
      "UpheldBy=\nTriggeredBy=web.socket web.timer --bad\nActiveState=active\n"
      "UnitFileState=enabled\nnoise\n",
      facts);
  EXPECT_EQ(facts.main_pid, 122);
  EXPECT_EQ(facts.restart, "always");
  EXPECT_EQ(facts.active_state, "active");
  EXPECT_EQ(facts.file_state, "enabled");
  EXPECT_EQ(facts.prevents, (std::vector<std::string>{"5", "KILL"}));
  EXPECT_EQ(facts.triggers, (std::vector<std::string>{"web.socket", "web.timer"}));
  EXPECT_TRUE(facts.successes.empty());
}

TEST(SystemdUnit, OnlyActiveTriggersCount) {
  EXPECT_EQ(parse_active_units("Id=web.socket\nActiveState=inactive\n\nId=web.timer\n"
                               "ActiveState=active\n\nActiveState=failed\nId=x.path\n"),
            std::vector<std::string>{"web.timer"});
  EXPECT_TRUE(parse_active_units("").empty());
}

}  // namespace
}  // namespace ppmr
