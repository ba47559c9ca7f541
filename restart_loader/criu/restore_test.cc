// Tests the driver with a shell script in place of CRIU: order, failures, signals.
#include "restart_loader/criu/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/criu/relay_marks.h"

namespace ppmr {
namespace {

using testing::HasSubstr;

class RestoreWithAScript : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "restore_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    work_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(work_); }

  // The script runs `pager` or `restore` in the work directory; its first argument selects which.
  std::unique_ptr<Restore> restore_with(const std::string& pager, const std::string& restore,
                                        bool lazily = true,
                                        std::vector<std::string> criu_options = {}) {
    const std::string script = work_ + "/criu";
    std::ofstream(script) << "#!/bin/bash\ncd " << work_
                          << "\necho \"$@\" >> calls\ncase $1 in\npager)\n"
                          << pager << ";;\nrestore)\n"
                          << restore << ";;\nesac\n";
    chmod(script.c_str(), 0700);
    auto created =
        Restore::create({.criu = script,
                         .images = images_,
                         .work = work_,
                         .lazily = lazily,
                         .criu_options = std::move(criu_options),
                         .show_line = [&](const std::string& line) { shown_.push_back(line); },
                         .show_notice =
                             [&](const std::string& notice) {
                               notices_.push_back(notice);
                               if (on_notice_) on_notice_();
                             },
                         .stops_on_signal = stops_on_signal_,
                         .pager = {script, "pager"},
                         .why_cancelled = why_cancelled_});
    EXPECT_TRUE(created.has_value());
    return std::move(*created);
  }

  std::string read(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(work_ + "/" + name).rdbuf();
    return text.str();
  }

  std::string work_;
  std::string images_ = "/images";
  bool stops_on_signal_ = true;
  std::function<std::string()> why_cancelled_;
  std::vector<std::string> shown_;
  std::vector<std::string> notices_;
  std::function<void()> on_notice_;
};

constexpr const char* kReady = "printf '\\0' >&3; exec 3>&-;";

TEST_F(RestoreWithAScript, ImagesOfAMigrationLackMemory) {
  std::ofstream(work_ + "/memory-index") << "index";
  images_ = work_;
  for (const bool lazily : {true, false}) {
    const auto restored = restore_with("echo pager", "echo restore", lazily)->run();
    ASSERT_FALSE(restored);
    EXPECT_THAT(restored.error().message, HasSubstr("a part of a migration"));
  }
  EXPECT_FALSE(std::filesystem::exists(work_ + "/calls"));
}

TEST_F(RestoreWithAScript, StartsCriuRestoreOnceThePagerListens) {
  auto restore = restore_with(std::string("sleep 0.1; touch listening;") + kReady +
                                  "while [ ! -e enough ]; do sleep 0.01; done; touch filled",
                              "[ -e listening ] && echo 4711 > pidfile");
  const auto pid = restore->run();
  ASSERT_TRUE(pid.has_value()) << pid.error().message;
  EXPECT_EQ(*pid, 4711);
  EXPECT_FALSE(std::filesystem::exists(work_ + "/filled"));
  std::ofstream(work_ + "/enough") << "yes";
  const Status finished = restore->finish_pages();
  EXPECT_TRUE(finished.has_value());
  EXPECT_TRUE(std::filesystem::exists(work_ + "/filled"));
  EXPECT_THAT(read("calls"), HasSubstr("--lazy-pages"));
}

TEST_F(RestoreWithAScript, EagerRestoreDoesNotStartThePager) {
  auto restore = restore_with("exit 1", "echo 4711 > pidfile", false, {"--shell-job"});
  ASSERT_TRUE(restore->run().has_value());
  EXPECT_TRUE(restore->finish_pages().has_value());
  EXPECT_THAT(read("calls"), testing::Not(HasSubstr("pager")));
  EXPECT_THAT(read("calls"), testing::EndsWith("-v2 --shell-job\n"));
}

TEST_F(RestoreWithAScript, SignalStopsARestoreOnlyIfConfigured) {
  // Ends when the parent has taken the signal: bit 14 of the parent's pending signals is clear.
  constexpr const char* kSignals =
      "kill -TERM $PPID; while grep -q '^ShdPnd:.*[4-7c-f]...$' /proc/$PPID/status; do sleep 0.01; "
      "done; echo 4711 > pidfile";
  for (const bool stops : {true, false}) {
    stops_on_signal_ = stops;
    auto restore = restore_with("", kSignals, false);
    EXPECT_EQ(restore->run().has_value(), !stops);
  }
}

TEST_F(RestoreWithAScript, CancelledRestoreEndsACriuThatHangs) {
  why_cancelled_ = [this] { return std::filesystem::exists(work_ + "/hangs") ? "it hangs" : ""; };
  auto restore = restore_with("", "echo $$ > hangs; exec sleep 1000", false);
  const auto pid = restore->run();
  ASSERT_FALSE(pid.has_value());
  EXPECT_EQ(pid.error().errno_value, ECANCELED);
  EXPECT_EQ(kill(std::stoi(read("hangs")), 0), -1);
}

TEST_F(RestoreWithAScript, ProcessThatRunsIsNotCancelled) {
  bool runs = false;
  // The pager serves for longer than the interval at which a restore calls why_cancelled().
  why_cancelled_ = [&runs] { return runs ? "it runs" : ""; };
  auto restore = restore_with(std::string(kReady) + "sleep 1.2", "echo 4711 > pidfile");
  ASSERT_TRUE(restore->run().has_value());
  runs = true;
  EXPECT_TRUE(restore->finish_pages().has_value());
}

TEST_F(RestoreWithAScript, FailureQuotesCriuAndKeepsItsLog) {
  auto restore =
      restore_with(std::string(kReady) + "sleep 100",
                   "echo 'Error (criu/x.c:1): Can'\"'\"'t fork for 5: File exists' >&2; exit 1");
  const auto pid = restore->run();
  ASSERT_FALSE(pid.has_value());
  EXPECT_THAT(
      pid.error().message,
      HasSubstr("ended with exit code 1: \"Can't fork for 5: File exists\": pid 5 is in use"));
  EXPECT_THAT(read("restore.log"), HasSubstr("File exists"));
  ASSERT_EQ(shown_.size(), 1u);
}

TEST_F(RestoreWithAScript, FailureQuotesTheLogFileThatTheUserChose) {
  auto restore =
      restore_with("", "echo '(00.1) Error (criu/x.c:1): Something strange' > my.log; exit 3",
                   false, {"-o", "my.log"});
  const auto pid = restore->run();
  ASSERT_FALSE(pid.has_value());
  EXPECT_THAT(pid.error().message, HasSubstr("ended with exit code 3: \"Something strange\""));
}

TEST_F(RestoreWithAScript, RestoreFailsIfThePagerFailsToStart) {
  auto restore = restore_with("echo 'Error (criu/x.c:1): UFFD is not supported' >&2; exit 1",
                              "touch restored");
  const auto pid = restore->run();
  ASSERT_FALSE(pid.has_value());
  EXPECT_THAT(pid.error().message, HasSubstr("--eager"));
  EXPECT_FALSE(std::filesystem::exists(work_ + "/restored"));
}

TEST_F(RestoreWithAScript, MemoryIsReportedLostIfThePagerDiesWhileTheProcessRuns) {
  auto restore =
      restore_with(std::string(kReady) + "while [ ! -e enough ]; do sleep 0.01; done; kill -9 $$",
                   "echo 5 > pidfile");
  ASSERT_TRUE(restore->run().has_value());
  std::ofstream(work_ + "/enough") << "yes";
  const Status finished = restore->finish_pages();
  ASSERT_FALSE(finished.has_value());
  EXPECT_EQ(finished.error().errno_value, EFAULT);
  EXPECT_THAT(finished.error().message, HasSubstr("killed by signal 9"));
  EXPECT_NE(read("pages-server"), "") << "the guard needs the note";
}

TEST_F(RestoreWithAScript, RestoreFailsIfThePagerEndsBeforeTheProcessRuns) {
  auto restore =
      restore_with(std::string(kReady) + "while [ ! -e restoring ]; do sleep 0.01; done; exit 1",
                   "touch restoring; sleep 100");
  const auto began = std::chrono::steady_clock::now();
  const auto pid = restore->run();
  ASSERT_FALSE(pid.has_value());
  EXPECT_EQ(pid.error().errno_value, ECHILD) << "criu restore itself was not killed";
  EXPECT_THAT(pid.error().message, HasSubstr("the pager ended with exit code 1"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(50));
}

// The restore fails once the pager has ended and was reaped.
TEST_F(RestoreWithAScript, FailureQuotesThePagerThatFailedFirst) {
  const std::string pager =
      "while [ ! -e go ]; do sleep 0.01; done; echo 'Error (ppmr x): no memory is left' >&2;"
      "echo $$ > ended; exit 1";
  auto restore = restore_with(std::string(kReady) + pager,
                              "touch go; while [ ! -s ended ]; do sleep 0.01; done;"
                              "while [ -e /proc/$(cat ended) ]; do sleep 0.01; done;"
                              "echo 'Error (criu/x.c:1): script error' >&2; exit 1");
  const auto pid = restore->run();
  ASSERT_FALSE(pid.has_value());
  EXPECT_THAT(pid.error().message, HasSubstr("script error"));
  EXPECT_THAT(pid.error().message, HasSubstr("no memory is left"));
}

// The pager stops itself, like a pager that waits while the guard kills the tree. It continues when
// the driver has noticed the end of the restore.
TEST_F(RestoreWithAScript, FailureQuotesThePagerThatIsAboutToEnd) {
  const std::string pager =
      "echo $$ > pager; while [ ! -e go ]; do sleep 0.01; done;"
      "echo 'Error (ppmr x): no memory is left' >&2; kill -STOP $$; exit 1";
  auto restore = restore_with(
      std::string(kReady) + pager,
      "touch go; while [ ! -s pager ]; do sleep 0.01; done; pager=$(cat pager); me=$$;"
      "while ! grep -q ') T' /proc/$pager/stat; do sleep 0.01; done;"
      "(while [ -e /proc/$me ]; do sleep 0.01; done; kill -CONT $pager) > /dev/null 2>&1 &"
      "echo 'Error (criu/x.c:1): script error' >&2; exit 1");
  const auto pid = restore->run();
  ASSERT_FALSE(pid.has_value());
  EXPECT_THAT(pid.error().message, HasSubstr("script error"));
  EXPECT_THAT(pid.error().message, HasSubstr("no memory is left"));
}

// The tree runs, although CRIU fails because it has lost its relay.
TEST_F(RestoreWithAScript, PagerGoesOnAfterTheRelayHasLetCriuContinue) {
  auto restore = restore_with(
      std::string(kReady) + "while [ ! -e enough ]; do sleep 0.01; done; touch filled", "exit 1");
  ASSERT_TRUE(leave_mark(work_, RelayMark::kLetGo));
  ASSERT_FALSE(restore->run().has_value());
  restore.reset();
  EXPECT_FALSE(pages_server_is_lost(work_));
  std::ofstream(work_ + "/enough") << "yes";
  await_pages_server(work_);
  EXPECT_TRUE(std::filesystem::exists(work_ + "/filled"));
}

TEST_F(RestoreWithAScript, PagerEndsWithARestoreThatNoRelayHasLetContinue) {
  auto restore = restore_with(std::string(kReady) + "sleep 100", "exit 1");
  ASSERT_FALSE(restore->run().has_value());
  EXPECT_TRUE(pages_server_is_lost(work_));
}

TEST_F(RestoreWithAScript, DoesNotWaitForALogPipeThatAnotherProcessKeepsOpen) {
  auto restore = restore_with("", "sleep 30 & echo $! > leftover; echo 5 > pidfile; exit 0", false);
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(restore->run().has_value());
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  kill(std::stoi(read("leftover")), SIGKILL);
}

TEST_F(RestoreWithAScript, SignalThatArrivesBeforeTheProcessRunsKillsCriuAndItsChildren) {
  auto restore =
      restore_with(std::string(kReady) + "sleep 100",
                   "(trap '' TERM; sleep 100) & echo $! > child; echo > ready; sleep 100");
  ASSERT_EQ(mkfifo((work_ + "/ready").c_str(), 0600), 0);
  std::thread interrupter([&] {
    (void)read("ready");  // blocks until the script writes to it
    kill(getpid(), SIGTERM);
  });
  const auto pid = restore->run();
  interrupter.join();
  ASSERT_FALSE(pid.has_value());
  EXPECT_EQ(pid.error().errno_value, EINTR);
  EXPECT_THAT(pid.error().message, HasSubstr("nothing runs here"));
  const pid_t child = std::stoi(read("child"));
  // The process was killed. It ends soon, and stays a zombie until init reaps it.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::string state;
  do {
    state = "gone";
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string pid_field, name;
    stat >> pid_field >> name >> state;
    std::this_thread::yield();
  } while (state != "Z" && state != "gone" && std::chrono::steady_clock::now() < deadline);
  EXPECT_THAT(state, testing::AnyOf("Z", "gone"));
}

TEST_F(RestoreWithAScript, SignalWhilePagesAreMissingIsIgnored) {
  auto restore = restore_with(std::string(kReady) + "while [ ! -e enough ]; do sleep 0.01; done",
                              "echo 5 > pidfile");
  ASSERT_TRUE(restore->run().has_value());
  kill(getpid(), SIGINT);
  on_notice_ = [&] { std::ofstream(work_ + "/enough") << "yes"; };
  const Status finished = restore->finish_pages();
  EXPECT_TRUE(finished.has_value());
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("already runs"));
}

}  // namespace
}  // namespace ppmr
