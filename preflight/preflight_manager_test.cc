// Tests the findings about parents and service managers, with invented processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "preflight/preflight_findings.h"

namespace ppmr {
namespace {

using testing::HasSubstr;

const Parent kInit{.pid = 1, .name = "systemd", .program = "systemd"};
const Parent kPrompt{.pid = 400,
                     .parent = 1,
                     .name = "bash",
                     .program = "bash",
                     .words = {"-bash"},
                     .has_terminal = true,
                     .children = 1};

Parent process(const std::string& name, std::vector<std::string> words = {}) {
  return {.pid = 411,
          .parent = 1,
          .name = name,
          .program = name,
          .words = words.empty() ? std::vector<std::string>{name} : std::move(words),
          .waits = true,
          .children = 1};
}
Parent shell(const std::string& text) { return process("sh", {"sh", "-c", text}); }

UnitFacts unit(const std::string& restart, pid_t main_pid = 412) {
  return {.unit = {.name = "web.service"},
          .main_pid = main_pid,
          .active_state = "active",
          .restart = restart};
}

// Process 412 (server) and its parents.
class Managers : public testing::Test {
 protected:
  Managers() {
    tree_.root = 412;
    tree_.processes = {{.pid = 412, .name = "server"}};
    tree_.manager.emplace();
    facts().root_names = {"server"};
  }
  ManagerFacts& facts() { return *tree_.manager; }
  void set_parents(std::vector<Parent> parents) { facts().parents = std::move(parents); }

  // Returns the findings: "stop: SENTENCE: REMEDY" or "warn: ...", one per line.
  std::string find(const MoveOptions& options = {}) {
    Findings findings;
    check_managers(options, tree_, findings);
    std::string text;
    for (const Finding& finding : findings.take()) {
      EXPECT_FALSE(finding.remedy.empty());
      text +=
          (finding.severity == Severity::kStops ? "stop: " : "warn: ") + text_of(finding) + "\n";
    }
    return text;
  }
  // Expects one finding that starts with `severity` and has each of the parts.
  void expect(const std::string& severity, const std::vector<std::string>& parts) {
    const std::string found = find();
    EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 1) << found;
    EXPECT_TRUE(found.starts_with(severity)) << found;
    for (const std::string& part : parts) EXPECT_THAT(found, HasSubstr(part));
  }

  TreeFacts tree_;
};

TEST_F(Managers, OrphansJobsAndSessionsMoveWithoutAFinding) {
  const std::vector<std::vector<Parent>> cases = {
      {},                                                        // /proc does not show its parent
      {kInit},                                                   // setsid --fork
      {{.pid = 1, .name = "python3", .program = "python3.11"}},  // process 1 of a container
      {process("systemd"), kInit},                               // an orphan of a user's session
      {kPrompt, kInit},                                          // server &
      {process("setsid"), kPrompt, kInit},                       // setsid --wait server &
      {process("sshd"), kInit},
      {process("slurmstepd"), kInit},
      {process("ppmr"), kInit},
      {process("tmux: server"), kInit},
  };
  for (const auto& parents : cases) {
    set_parents(parents);
    EXPECT_EQ(find(), "") << (parents.empty() ? "" : parents[0].name);
  }
}

TEST_F(Managers, UnitThatMovesWithItsProcessesIsNoFindingButItsTriggersAre) {
  set_parents({kInit});
  facts().unit = unit("always");
  EXPECT_EQ(find({.moved_unit = "web.service"}), "");
  EXPECT_THAT(find({.moved_unit = "other.service"}), HasSubstr("stop: "));
  facts().unit->triggers = {"web.socket"};
  EXPECT_THAT(find({.moved_unit = "web.service"}), HasSubstr("web.socket"));
}

TEST_F(Managers, ShellWithAnEndlessLoopStopsTheMove) {
  set_parents({shell("while true; do ./server; done"), kInit});
  expect("stop", {"411 (sh)", "412 (server)", "again here", "kill -KILL 411", "move process 411"});
}

TEST_F(Managers, LoopInTheFileOfAScriptStopsTheMove) {
  set_parents({process("loop", {"/bin/bash", "./loop"}), kInit});
  facts().parents[0].program = "bash";
  facts().scripts[411] = "#!/bin/bash\nwhile true; do ./server; done\n";
  expect("stop", {"411 (loop)"});
  facts().scripts[411] = "";  // the script was deleted
  expect("warn", {"may start it again"});
}

TEST_F(Managers, LoopIsFoundBehindWrappersAndOtherScripts) {
  Parent wrapper = process("setsid", {"setsid", "--wait", "./server"});
  wrapper.pid = 410;
  set_parents({wrapper, shell("while true; do setsid --wait ./server; done"), kInit});
  expect("stop", {"411 (sh)"});
  Parent script = process("run", {"/bin/sh", "/srv/run"});
  script.pid = 410, script.program = "dash";
  set_parents({script, shell("while :; do /srv/run; done"), kInit});
  facts().scripts[410] = "./server\n";
  expect("stop", {"411 (sh)"});
}

TEST_F(Managers, LoopOfTheFirstProcessOfAContainerCannotBeEnded) {
  set_parents({shell("while true; do ./server; done")});
  facts().parents[0].pid = 1;
  expect("stop", {"start the program without the loop"});
}

TEST_F(Managers, LoopThatIsNotCertainIsAWarning) {
  set_parents({shell("for i in 1 2 3; do ./server $i; done"), kInit});
  expect("warn", {"411 (sh)", "may start it again"});
  // The shell may wait for another child, or not at all.
  set_parents({shell("while true; do ./server; done"), kInit});
  facts().parents[0].children = 2;
  expect("warn", {"may start it again"});
  facts().parents[0].children = 1, facts().parents[0].waits = false;
  expect("warn", {"may start it again"});
}

TEST_F(Managers, ScriptThatGoesOnIsAWarning) {
  set_parents({shell("./server; echo ended"), kInit});
  expect("warn", {"goes on here", "137"});
}

TEST_F(Managers, TypedLoopIsPossibleInTheForegroundOnly) {
  set_parents({kPrompt, kInit});
  facts().parents[0].waits = true;
  expect("warn", {"400 (bash)", "foreground"});
}

TEST_F(Managers, UnknownParentIsAWarning) {
  set_parents({process("python3"), kInit});
  expect("warn", {"411 (python3)", "may start it again", "SIGKILL"});
}

TEST_F(Managers, ServiceDirectoriesSayWhetherTheServiceStartsAgain) {
  const std::pair<const char*, const char*> cases[] = {{"runsv", "sv once /etc/sv/web"},
                                                       {"supervise", "svc -o /etc/sv/web"},
                                                       {"s6-supervise", "s6-svc -O /etc/sv/web"}};
  for (const auto& [name, remedy] : cases) {
    set_parents({process(name), kInit});
    facts().service_directories[411] = {"/etc/sv/web", true};
    expect("stop", {name, "would start", remedy});
    facts().service_directories[411].starts_again.reset();
    expect("warn", {name, "may start", remedy});
    facts().service_directories[411].starts_again = false;  // the remedy was applied
    EXPECT_EQ(find(), "") << name;
    // The run script has no `exec`.
    set_parents({shell("./server"), process(name), kInit});
    facts().parents[0].pid = 410;
    facts().service_directories[411].starts_again = true;
    expect("stop", {name});
  }
}

TEST_F(Managers, SupervisordStartsItsProgramsAgain) {
  set_parents({process("supervisord"), kInit});
  facts().supervisor_program = {"web", ""};
  expect("stop", {"supervisord", "autorestart=false for web", "setsid"});
  facts().supervisor_program = {"web", "unexpected"};
  expect("stop", {"supervisord"});
  facts().supervisor_program = {"web", "false"};
  expect("warn", {"supervisorctl update"});
  facts().supervisor_program = {};
  expect("warn", {"may start it again"});
  set_parents({process("supervisord")});  // an orphan in a container
  facts().parents[0].pid = 1;
  EXPECT_EQ(find(), "");
}

TEST_F(Managers, ContainerManagersAreAWarning) {
  for (const char* name : {"conmon", "containerd-shim", "docker-init", "supervise-daemo"}) {
    set_parents({process(name), kInit});
    expect("warn", {name, "may start", "restart policy"});
  }
}

TEST_F(Managers, MonitIsAWarning) {
  set_parents({kInit});
  facts().monit_runs = true;
  expect("warn", {"monit", "unmonitor"});
}

TEST_F(Managers, UnitThatRestartsStopsTheMove) {
  set_parents({kInit});
  for (const char* restart : {"always", "on-failure", "on-abnormal", "on-abort"}) {
    facts().unit = unit(restart);
    expect("stop", {"web.service", restart, "systemctl edit --runtime web.service", "Restart=no"});
  }
  facts().unit->unit.of_user = true;
  expect("stop", {"systemctl --user edit"});
  facts().unit->forces = {"KILL"};
  expect("stop", {"RestartForceExitStatus="});
}

TEST_F(Managers, UnitWithoutRestartMovesWithAWarning) {
  set_parents({kInit});
  facts().unit = unit("no");
  expect("warn", {"web.service", "ends here"});
  EXPECT_THAT(find(), testing::Not(HasSubstr("boot")));
  facts().unit->file_state = "enabled";
  expect("warn", {"next boot", "systemctl disable web.service"});
}

TEST_F(Managers, ActiveTriggersStopTheMove) {
  set_parents({kInit});
  facts().unit = unit("no");
  facts().unit->triggers = {"web.socket", "web.timer"};
  const std::string found = find();
  EXPECT_TRUE(found.starts_with("stop")) << found;
  EXPECT_THAT(found, HasSubstr("web.socket, web.timer can trigger it"));
  EXPECT_THAT(found, HasSubstr("`systemctl stop web.socket web.timer`"));
}

TEST_F(Managers, OtherProcessesOfAServiceMoveWithoutAFinding) {
  // For example, a process that has moved here before belongs to the service of the target's
  // daemon.
  set_parents({kInit});
  facts().unit = unit("always", 77);
  EXPECT_EQ(find(), "");
}

TEST_F(Managers, MainProcessMayBeBelowTheRootOrAWaitingParent) {
  tree_.processes.push_back({.pid = 413, .name = "worker"});
  set_parents({kInit});
  facts().unit = unit("always", 413);
  expect("stop", {"web.service"});
  set_parents({process("sudo"), kInit});
  facts().unit = unit("always", 411);
  expect("stop", {"web.service"});
  facts().unit = unit("on-failure", 411);  // the exit code of the parent is unknown
  expect("warn", {"web.service", "may start"});
}

TEST_F(Managers, SilentSystemdIsAWarning) {
  set_parents({kInit});
  facts().unit = UnitFacts{.unit = {.name = "web.service"}, .problem = "systemctl failed\n"};
  expect("warn", {"web.service", "systemctl failed?"});
  facts().unit = unit("always", 0);  // systemd has lost the main process
  expect("warn", {"web.service"});
}

TEST_F(Managers, NamesOfProcessesAreEscaped) {
  set_parents({process("evil\x1b[2J\n"), kInit});
  expect("warn", {"evil?[2J?"});
}

TEST_F(Managers, OriginalOfACopyRunsOn) {
  set_parents({shell("while true; do ./server; done"), kInit});
  EXPECT_EQ(find({.own_pid_namespace = true}), "");
  tree_.manager.reset();
  EXPECT_EQ(find(), "");
}

}  // namespace
}  // namespace ppmr
