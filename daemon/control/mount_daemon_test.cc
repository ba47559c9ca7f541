// Requests to a mount's daemon. A control server replaces the daemon.
#include "daemon/control/mount_daemon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "daemon/control/control_socket.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using testing::HasSubstr;

class MountDaemon : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = std::filesystem::temp_directory_path() / "mount_daemon_test-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  CheckpointPath checkpoint_of(ControlServer::Handler handler) {
    server_ = std::move(*ControlServer::create({.directory = directory_}));
    server_->serve(std::move(handler));
    return {{"/mnt/in", "/", "fuse.ppmr", server_->path()}, "ck1", "", "/mnt/in/ck1"};
  }

  void notice(const std::string& sentence) { notices_.push_back(sentence); }
  CommandResult<bool> wait(const CheckpointPath& checkpoint, std::optional<milliseconds> timeout,
                           milliseconds quiet_limit = kQuietLimit) {
    return wait_until_complete(
        checkpoint, timeout, [&](const std::string& sentence) { notice(sentence); }, quiet_limit);
  }

  std::string directory_;
  std::unique_ptr<ControlServer> server_;
  std::vector<std::string> notices_;
};

// Waits for the time in the request, like a daemon that has nothing to report before.
void wait_as_asked(const json& request) {
  std::this_thread::sleep_for(milliseconds(request.at("timeout_ms").get<int>()));
}

json status_with(bool connected, bool exists) {
  json status = {
      {"ok", true}, {"peers", {{{"connected", connected}}}}, {"checkpoints", json::array()}};
  if (exists) status["checkpoints"].push_back({{"name", "ck1"}});
  return status;
}

TEST_F(MountDaemon, WaitReturnsAtOnceIfTheCheckpointIsComplete) {
  const auto checkpoint = checkpoint_of([](const json&) {
    return json{{"ok", true}, {"state", "complete"}};
  });
  const auto waited = wait(checkpoint, std::nullopt);
  ASSERT_TRUE(waited.has_value());
  EXPECT_FALSE(*waited);
  EXPECT_TRUE(notices_.empty());
}

TEST_F(MountDaemon, WaitsForAnOpenCheckpointAndNotifiesOnce) {
  std::atomic<int> asked = 0;
  const auto checkpoint = checkpoint_of([&](const json& request) -> json {
    if (request.at("op") == "status") return status_with(true, true);
    if (++asked > 3) return {{"ok", true}, {"state", "sealed"}};
    return refusal({ETIMEDOUT, "not yet"});
  });
  const auto waited = wait(checkpoint, std::nullopt);
  ASSERT_TRUE(waited.has_value());
  EXPECT_TRUE(*waited);
  EXPECT_THAT(notices_, testing::ElementsAre("waiting for /mnt/in/ck1 to be complete"));
}

TEST_F(MountDaemon, NotifiesOnceOfACheckpointThatNoLongerGrows) {
  std::atomic<int> asked = 0;
  const auto checkpoint = checkpoint_of([&](const json& request) -> json {
    if (request.at("op") == "status") {
      json status = status_with(true, true);
      status["checkpoints"][0]["bytes"] = std::min<int>(asked, 2);
      return status;
    }
    wait_as_asked(request);
    if (++asked > 8) return {{"ok", true}, {"state", "complete"}};
    return refusal({ETIMEDOUT, "not yet"});
  });
  ASSERT_TRUE(wait(checkpoint, std::nullopt, milliseconds(30)).has_value());
  EXPECT_THAT(notices_, testing::ElementsAre("waiting for /mnt/in/ck1 to be complete",
                                             HasSubstr("/mnt/in/ck1 has not grown for 30")));
}

TEST_F(MountDaemon, ReportsWhyACheckpointFailed) {
  const auto checkpoint = checkpoint_of([](const json&) {
    return refusal({EIO, "the source went away"});
  });
  const auto waited = wait(checkpoint, std::nullopt);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().exit_code, ExitCode::kCheckpointFailed);
  EXPECT_THAT(waited.error().message, HasSubstr("the source went away"));
}

TEST_F(MountDaemon, WaitEndsAtItsTimeout) {
  const auto checkpoint = checkpoint_of([](const json& request) -> json {
    if (request.at("op") == "status") return status_with(true, false);
    wait_as_asked(request);
    return refusal({ETIMEDOUT, "not yet"});
  });
  const auto waited = wait(checkpoint, milliseconds(150));
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().exit_code, ExitCode::kTimedOut);
  EXPECT_THAT(waited.error().message, HasSubstr("did not appear within 150 ms"));
}

TEST_F(MountDaemon, DoesNotWaitForAMissingCheckpointIfNoSourceIsConnected) {
  const auto checkpoint = checkpoint_of([](const json& request) -> json {
    if (request.at("op") == "status") return status_with(false, false);
    return refusal({ENOENT, "no such checkpoint"});
  });
  const auto waited = wait(checkpoint, std::nullopt);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().exit_code, ExitCode::kCheckpointFailed);
  EXPECT_THAT(waited.error().message, HasSubstr("no source is connected"));
}

TEST_F(MountDaemon, LongRequestContinuesWhileItsClientAsksForTheStatus) {
  // The client asks for the status after the first slice.
  std::atomic<bool> status_requested = false;
  const auto checkpoint = checkpoint_of([&](const json& request) -> json {
    if (request.at("op") == "status") {
      status_requested = true;
      status_requested.notify_all();
      return status_with(true, true);
    }
    status_requested.wait(false);
    return {{"ok", true}, {"files", 3}};
  });
  const auto answer = ask_at_length(checkpoint.mount, {{"op", "commit"}}, std::nullopt);
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->at("files"), 3);
}

TEST_F(MountDaemon, ProgressExtendsTheLimitForTimeWithoutProgress) {
  std::atomic<int> statuses = 0;
  std::atomic<bool> grows = true;
  const auto checkpoint = checkpoint_of([&](const json& request) -> json {
    if (request.at("op") == "status") {
      json status = status_with(true, true);
      status["bytes"] = grows ? ++statuses : 0;
      statuses.notify_all();
      return status;
    }
    while (statuses < 12) statuses.wait(statuses);  // at least twice the limit
    return {{"ok", true}};
  });
  const auto ask_for = [&](Timeout limits) {
    return ask_at_length(checkpoint.mount, {{"op", "commit"}}, milliseconds(400), limits);
  };
  const auto sealed = ask_for(Timeout::kWithoutProgress);
  EXPECT_TRUE(sealed) << sealed.error().message;
  statuses = 0;
  const auto total = ask_for(Timeout::kTotal);
  ASSERT_FALSE(total);
  EXPECT_EQ(total.error().exit_code, ExitCode::kTimedOut);
  statuses = 0;
  grows = false;
  EXPECT_FALSE(ask_for(Timeout::kWithoutProgress));
  statuses = 100;  // lets the handlers end
  statuses.notify_all();
  server_.reset();  // destroyed before the variables that its handlers use
}

TEST_F(MountDaemon, ReportsADaemonThatHasDied) {
  const auto checkpoint = checkpoint_of([](const json&) { return json(); });
  server_.reset();
  const auto answer = ask(checkpoint.mount, {{"op", "status"}});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().exit_code, ExitCode::kDaemonSilent);
  EXPECT_THAT(answer.error().message, HasSubstr("umount -l /mnt/in"));
}

TEST_F(MountDaemon, RequestEndsAtItsTimeoutIfTheDaemonDoesNotReply) {
  std::atomic<bool> end = false;
  const auto checkpoint = checkpoint_of([&](const json&) {
    end.wait(false);
    return json();
  });
  const auto answer = ask(checkpoint.mount, {{"op", "status"}}, milliseconds(100));
  end = true;
  end.notify_all();
  server_.reset();  // destroyed before `end`, which its handler uses
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().exit_code, ExitCode::kDaemonSilent);
}

TEST(FindCheckpoint, ReportsThatAPathIsNotInAPpmrMount) {
  const auto outside = find_checkpoint("/");
  ASSERT_FALSE(outside.has_value());
  EXPECT_EQ(outside.error().exit_code, ExitCode::kNotMounted);
  EXPECT_THAT(outside.error().message, HasSubstr("not in a ppmr mount"));
}

}  // namespace
}  // namespace ppmr
