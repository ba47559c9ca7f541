// Tests the facts about real processes, and the parsers of files of service managers.
#include "preflight/manager_facts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "processes/test_process.h"

namespace ppmr {
namespace {

using namespace std::string_literals;
using testing::Contains;
using testing::ElementsAre;

TEST(ManagerFacts, StatusOfAServiceDirectorySaysWhatIsWanted) {
  // What runit 2.1.2 wrote before and after `sv once`.
  const std::string up = "@\0\0\0k\n\001E\0\037\247\204g\0\0\0\0u\0\001"s;
  const std::string once = "@\0\0\0k\n\001E\0\037\247\204g\0\0\0\0d\0\001"s;
  EXPECT_EQ(parse_service_status(up), true);
  EXPECT_EQ(parse_service_status(once), false);
  EXPECT_EQ(parse_service_status(up.substr(0, 18)), true);  // daemontools
  EXPECT_EQ(parse_service_status(std::string(17, 'x') + "\0"s), false);
  EXPECT_EQ(parse_service_status(std::string(34, 'x') + "\014"s), true);  // s6
  EXPECT_EQ(parse_service_status(std::string(42, 'x') + "\010"s), false);
  EXPECT_EQ(parse_service_status(""), std::nullopt);
  EXPECT_EQ(parse_service_status("something else"), std::nullopt);
}

TEST(ManagerFacts, ConfigurationOfSupervisordIsParsed) {
  const std::string text =
      "[program:other]\nautorestart=true\n\n[program:web]\ncommand=web ; the server\n"
      ";autorestart=true\nautorestart = false ; never\n[program:last]\ncommand=x\n"
      "[include]\nfiles = conf.d/*.conf\n  more/*.ini\n";
  EXPECT_EQ(find_autorestart(text, "web"), "false");
  EXPECT_EQ(find_autorestart(text, "other"), "true");
  EXPECT_EQ(find_autorestart(text, "last"), "");
  EXPECT_EQ(find_autorestart(text, "none"), "");
  EXPECT_THAT(find_includes(text), ElementsAre("conf.d/*.conf", "more/*.ini"));
  EXPECT_EQ(variable_in("A=1\0SUPERVISOR_PROCESS_NAME=web\0"s, "SUPERVISOR_PROCESS_NAME"), "web");
  EXPECT_EQ(variable_in("A=1\0", "B"), "");
}

TEST(ManagerFacts, ProcessHasTheNamesOfItsFileAndItsScript) {
  EXPECT_THAT(names_of("web", "/usr/bin/python3.11", {"python3", "/srv/web.py", "-v"}),
              ElementsAre("web", "python3.11", "python3", "web.py"));
  EXPECT_THAT(names_of("sleep", "sleep", {"sleep", "10"}), ElementsAre("sleep"));
  EXPECT_THAT(names_of("server", "", {}), ElementsAre("server"));
}

TEST(ManagerFacts, ParentsBehindShellsAndWrappersCount) {
  const Parent shell{.pid = 3, .name = "loop", .program = "dash"};
  const Parent wrapper{.pid = 4, .name = "setsid", .program = "setsid"};
  const Parent other{.pid = 2, .name = "python3", .program = "python3.11"};
  EXPECT_EQ(count_passed({}), 0u);
  EXPECT_EQ(count_passed({other, shell}), 0u);
  EXPECT_EQ(count_passed({wrapper, shell, other}), 2u);
  EXPECT_EQ(kind_of({.pid = 1, .name = "init", .program = "busybox"}), ParentKind::kFirst);
  EXPECT_EQ(kind_of({.pid = 9, .program = "busybox", .words = {"/bin/sh", "loop"}}),
            ParentKind::kShell);
  EXPECT_EQ(kind_of({.pid = 9, .program = "busybox", .words = {"busybox", "ash"}}),
            ParentKind::kShell);
  EXPECT_EQ(kind_of({.pid = 9, .program = "busybox", .words = {"busybox", "httpd"}}),
            ParentKind::kUnknown);
  EXPECT_EQ(kind_of({.pid = 9, .name = "PM2 v5.3.0: God"}), ParentKind::kManager);
}

TEST(ManagerFacts, ScriptOfAShellIsRead) {
  const std::string path =
      std::filesystem::temp_directory_path() / fmt::format("manager_facts_test-{}", getpid());
  const std::string text = "#!/bin/sh\nwhile true; do\n  sleep 1000\ndone\n";
  std::ofstream(path) << text;
  const pid_t shell = fork();
  if (shell == 0) {
    execl("/bin/sh", "sh", path.c_str(), nullptr);
    _exit(127);
  }
  // Waits until the shell has started its child, and the child its program.
  pid_t child = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    const auto tree = read_tree(shell);
    if (tree && tree->size() == 2 && tree->at(1).name == "sleep") child = tree->at(1).pid;
    if (child != 0 && read_parents(child).at(0).waits) break;
    std::this_thread::yield();
  }
  ASSERT_NE(child, 0);
  const ManagerFacts facts = gather_manager_facts({child, {*read_process_stat(child)}});
  EXPECT_THAT(facts.root_names, Contains("sleep"));
  ASSERT_FALSE(facts.parents.empty());
  EXPECT_EQ(facts.parents[0].pid, shell);
  EXPECT_EQ(facts.scripts.at(shell), text);
  kill(shell, SIGKILL);
  kill(child, SIGKILL);
  waitpid(shell, nullptr, 0);
  std::filesystem::remove(path);
}

TEST(ManagerFacts, ProcessThatHasEndedHasNoManager) {
  const ManagerFacts facts = gather_manager_facts({1 << 30, {{.pid = 1 << 30, .name = "gone"}}});
  EXPECT_TRUE(facts.parents.empty());
  EXPECT_FALSE(facts.unit.has_value());
}

}  // namespace
}  // namespace ppmr
