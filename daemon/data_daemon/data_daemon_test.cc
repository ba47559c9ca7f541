#include "daemon/data_daemon/data_daemon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

namespace ppmr {
namespace {

using testing::HasSubstr;

// Calls `mounted`, and then blocks until stop().
class FakeMount final : public ServedMount {
 public:
  Status serve(const std::function<void()>& mounted) override {
    if (fails) return failure(EPERM, "mount /x: not permitted");
    mounted();
    std::unique_lock lock(mutex_);
    stopped_.wait(lock, [this] { return stop_; });
    return {};
  }
  void stop() override {
    std::lock_guard lock(mutex_);
    stop_ = true;
    stopped_.notify_all();
  }
  nlohmann::json answer(const nlohmann::json&, PassedDescriptors&) override {
    return {{"ok", true}};
  }
  void stop_answering() override { answers = false; }
  const OutcomeTally& outcomes() const override { return tally_; }

  bool fails = false;
  bool answers = true;

 private:
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  OutcomeTally tally_{migrations_tally()};
};

// Each test runs its steps in a child process, because a daemon blocks signals and drops rights.
class DataDaemonSteps : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "data_daemon_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    base_ = path;
    setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
    options_ = {.mountpoint = base_ + "/mnt"};
    options_.flags.foreground = true;
    options_.credentials.insecure = true;
    std::filesystem::create_directory(options_.mountpoint);
  }
  void TearDown() override { std::filesystem::remove_all(base_); }

  struct Ended {
    int exit_code = -1;
    std::string errors;
  };
  Ended run(const std::function<ExitCode(Daemon&)>& body) {
    const std::string file = base_ + "/errors";
    const pid_t child = fork();
    if (child == 0) {
      if (std::freopen(file.c_str(), "w", stderr) == nullptr) _exit(99);
      const int exit_code = run_daemon({.name = "ppmr test", .foreground = true}, body);
      std::fflush(stderr);
      _exit(exit_code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status, text.str()};
  }
  // Takes only the step check().
  Ended check() {
    return run([this](Daemon& daemon) {
      DataDaemon data(daemon, options_);
      const auto checked = data.check();
      return checked ? ExitCode::kSuccess : daemon.failed(checked.error());
    });
  }

  std::string base_;
  DataDaemonOptions options_;
};

TEST_F(DataDaemonSteps, CheckAcceptsAnEmptyDirectoryAsMountPoint) {
  EXPECT_EQ(check().exit_code, to_int(ExitCode::kSuccess));
}

TEST_F(DataDaemonSteps, CheckMakesAMountPointThatDoesNotExist) {
  options_.mountpoint = base_ + "/not/there";
  EXPECT_EQ(check().exit_code, to_int(ExitCode::kSuccess));
  EXPECT_TRUE(std::filesystem::is_directory(options_.mountpoint));
}

TEST_F(DataDaemonSteps, CheckAloneMakesNothing) {
  options_.flags.check = true;
  options_.mountpoint = base_ + "/not/there";
  EXPECT_EQ(check().exit_code, to_int(ExitCode::kSuccess));
  EXPECT_FALSE(std::filesystem::exists(options_.mountpoint));
}

TEST_F(DataDaemonSteps, CheckRefusesAMountPointThatCannotBeMade) {
  std::ofstream(base_ + "/file") << "x";
  options_.mountpoint = base_ + "/file/missing";
  const Ended ended = check();
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kMountFailed));
  EXPECT_THAT(ended.errors, HasSubstr("missing"));
}

TEST_F(DataDaemonSteps, CheckRefusesAKeyFileThatDoesNotExist) {
  options_.credentials.insecure = false;
  options_.credentials.key_file = base_ + "/no.key";
  const Ended ended = check();
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kUsage));
  EXPECT_THAT(ended.errors, HasSubstr("no.key"));
}

TEST_F(DataDaemonSteps, CheckRefusesAnAuditFileThatCannotBeOpened) {
  options_.flags.audit_file = base_ + "/missing/audit.log";
  const Ended ended = check();
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kUsage));
  EXPECT_THAT(ended.errors, HasSubstr("audit.log"));
}

TEST_F(DataDaemonSteps, CheckRefusesAUserThatDoesNotExist) {
  options_.flags.user = "no-such-user-of-ppmr";
  EXPECT_EQ(check().exit_code, to_int(ExitCode::kUsage));
}

TEST_F(DataDaemonSteps, CheckMakesThePathOfTheAuditFileAbsolute) {
  options_.flags.audit_file = "audit.log";
  const Ended ended = run([this](Daemon& daemon) {
    if (chdir(base_.c_str()) != 0) return ExitCode::kFailure;
    DataDaemon data(daemon, options_);
    if (const auto checked = data.check(); !checked) return daemon.failed(checked.error());
    return data.audit_file() == base_ + "/audit.log" ? ExitCode::kSuccess : ExitCode::kFailure;
  });
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kSuccess)) << ended.errors;
}

TEST_F(DataDaemonSteps, ControlSocketExistsFromOpenUntilTheDaemonEnds) {
  const Ended ended = run([this](Daemon& daemon) {
    std::string path;
    {
      DataDaemon data(daemon, options_);
      if (const auto checked = data.check(); !checked) return daemon.failed(checked.error());
      if (const auto opened = data.open(); !opened) return daemon.failed(opened.error());
      path = data.control_socket();
      if (!std::filesystem::is_socket(path)) return ExitCode::kFailure;
    }
    return std::filesystem::exists(path) ? ExitCode::kFailure : ExitCode::kSuccess;
  });
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kSuccess)) << ended.errors;
}

TEST_F(DataDaemonSteps, ServeEndsWhenTheMountIsStoppedAndEndsItsAnswersFirst) {
  const Ended ended = run([this](Daemon& daemon) {
    DataDaemon data(daemon, options_);
    if (const auto checked = data.check(); !checked) return daemon.failed(checked.error());
    if (const auto opened = data.open(); !opened) return daemon.failed(opened.error());
    FakeMount mount;
    bool was_ready = false;
    const auto served = data.serve(mount, [&] {
      was_ready = true;
      kill(getpid(), SIGTERM);  // StopSignals stops the mount
    });
    if (!served) return daemon.failed(served.error());
    return was_ready && !mount.answers ? ExitCode::kSuccess : ExitCode::kFailure;
  });
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kSuccess)) << ended.errors;
}

TEST_F(DataDaemonSteps, ServeReportsAMountThatFails) {
  const Ended ended = run([this](Daemon& daemon) {
    DataDaemon data(daemon, options_);
    if (const auto checked = data.check(); !checked) return daemon.failed(checked.error());
    if (const auto opened = data.open(); !opened) return daemon.failed(opened.error());
    FakeMount mount;
    mount.fails = true;
    const auto served = data.serve(mount, [] {});
    return served ? ExitCode::kSuccess : daemon.failed(served.error());
  });
  EXPECT_EQ(ended.exit_code, to_int(ExitCode::kMountFailed));
  EXPECT_THAT(ended.errors, HasSubstr("not permitted"));
}

}  // namespace
}  // namespace ppmr
