#include "daemon/background/daemon.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using testing::HasSubstr;

class DaemonLife : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "daemon_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(base_); }

  // What the shell sees of a daemon: the exit code, and what it wrote to stderr before its report.
  struct Seen {
    int exit_code = -1;
    std::string stderr_text;
  };
  Seen run(DaemonOptions options, const std::function<ExitCode(Daemon&)>& body) {
    const std::string file = base_ + "/stderr";
    const pid_t child = fork();
    if (child == 0) {
      const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(fd, STDERR_FILENO);
      _exit(run_daemon(options, body));
    }
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status, read(file)};
  }
  static std::string read(const std::string& file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  // Waits until `file` has content, and returns it. The daemon writes it after the parent has
  // ended.
  static std::string await(const std::string& file) {
    for (int tries = 0; tries < 500 && read(file).empty(); ++tries) usleep(10'000);
    return read(file);
  }

  std::string base_;
};

TEST_F(DaemonLife, ParentSucceedsWhenTheDaemonIsReady) {
  const Seen seen = run({.name = "ppmr test", .log_file = base_ + "/log"}, [&](Daemon& daemon) {
    daemon.ready();
    spdlog::info("serving");
    char cwd[4096];
    std::ofstream(base_ + "/facts")
        << getcwd(cwd, sizeof(cwd)) << " " << (getsid(0) == getpid()) << std::endl;
    return ExitCode::kSuccess;
  });
  EXPECT_EQ(seen.exit_code, 0);
  EXPECT_EQ(await(base_ + "/facts"), "/ 1\n");
  EXPECT_THAT(await(base_ + "/log"), HasSubstr("serving"));
}

TEST_F(DaemonLife, ParentReportsAnErrorOfTheDaemonBeforeItWasReady) {
  const Seen seen = run({.name = "ppmr test"}, [](Daemon& daemon) {
    return daemon.failed({EBUSY, "mount /x: busy"}, ExitCode::kMountFailed);
  });
  EXPECT_EQ(seen.exit_code, 3);
  EXPECT_EQ(seen.stderr_text,
            "ppmr test: mount /x: busy\n"
            "ppmr test: exit status 3: see TROUBLESHOOTING in ppmr(8)\n");
}

TEST_F(DaemonLife, ParentReportsThatTheDaemonWasKilledBeforeItWasReady) {
  const Seen seen = run({.name = "ppmr test"}, [](Daemon&) {
    kill(getpid(), SIGKILL);
    return ExitCode::kSuccess;
  });
  EXPECT_EQ(seen.exit_code, 1);
  EXPECT_THAT(seen.stderr_text, HasSubstr("was killed by signal 9"));
}

TEST_F(DaemonLife, ForegroundDoesNotFork) {
  const Seen seen = run({.name = "ppmr test", .foreground = true}, [&](Daemon& daemon) {
    daemon.ready();
    spdlog::warn("a warning");
    return daemon.failed({EIO, "it went wrong"}, ExitCode::kPeerFailed);
  });
  EXPECT_EQ(seen.exit_code, 4);
  EXPECT_THAT(seen.stderr_text, HasSubstr("a warning"));
  EXPECT_THAT(seen.stderr_text, HasSubstr("it went wrong"));
}

TEST_F(DaemonLife, RefusesALogFileThatCannotBeWritten) {
  const Seen seen = run({.name = "ppmr test", .log_file = base_ + "/no/such/log"},
                        [](Daemon&) { return ExitCode::kSuccess; });
  EXPECT_EQ(seen.exit_code, 1);
  EXPECT_THAT(seen.stderr_text, HasSubstr("/no/such/log: No such file or directory"));
}

TEST_F(DaemonLife, DeliversSignalsThatArrivedBeforeTheHandlerWasInstalled) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    const Seen seen = run({.name = "ppmr test", .foreground = true}, [&](Daemon& daemon) {
      kill(getpid(), number);
      std::atomic<int> got = 0;
      StopSignals signals([&](int signal) { got = signal; }, [&] { got = SIGHUP; });
      for (int tries = 0; tries < 500 && got == 0; ++tries) usleep(10'000);
      return got == number ? ExitCode::kSuccess : ExitCode::kFailure;
    });
    EXPECT_EQ(seen.exit_code, 0) << seen.stderr_text;
  }
}

TEST_F(DaemonLife, ReportsAnExceptionInTheDaemonAsFailure) {
  for (const bool foreground : {false, true}) {
    const Seen seen = run({.name = "ppmr test", .foreground = foreground}, [](Daemon&) -> ExitCode {
      throw std::system_error(EAGAIN, std::generic_category(), "start a thread");
    });
    EXPECT_EQ(seen.exit_code, 1);
    EXPECT_THAT(seen.stderr_text, HasSubstr("start a thread: Resource temporarily unavailable"));
    EXPECT_THAT(seen.stderr_text, testing::Not(HasSubstr("signal")));
  }
}

}  // namespace
}  // namespace ppmr
