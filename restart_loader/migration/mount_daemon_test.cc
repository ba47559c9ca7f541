// Clients of a mount's daemon against a control server that plays one.
#include "restart_loader/migration/mount_daemon.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "mount/control/control_socket.h"

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

json status_with(bool connected, bool exists) {
  json status = {
      {"ok", true}, {"peers", {{{"connected", connected}}}}, {"checkpoints", json::array()}};
  if (exists) status["checkpoints"].push_back({{"name", "ck1"}});
  return status;
}

TEST_F(MountDaemon, ACompleteCheckpointIsNotWaitedFor) {
  const auto checkpoint = checkpoint_of([](const json&) {
    return json{{"ok", true}, {"state", "complete"}};
  });
  const auto waited = wait(checkpoint, std::nullopt);
  ASSERT_TRUE(waited.has_value());
  EXPECT_FALSE(*waited);
  EXPECT_TRUE(notices_.empty());
}

TEST_F(MountDaemon, AnOpenCheckpointIsWaitedForAndSaidSoOnce) {
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

TEST_F(MountDaemon, ACheckpointThatNoLongerGrowsIsMentionedOnce) {
  std::atomic<int> asked = 0;
  const auto checkpoint = checkpoint_of([&](const json& request) -> json {
    if (request.at("op") == "status") {
      json status = status_with(true, true);
      status["checkpoints"][0]["bytes"] = std::min<int>(asked, 2);
      return status;
    }
    std::this_thread::sleep_for(milliseconds(request.at("timeout_ms").get<int>()));
    if (++asked > 8) return {{"ok", true}, {"state", "complete"}};
    return refusal({ETIMEDOUT, "not yet"});
  });
  ASSERT_TRUE(wait(checkpoint, std::nullopt, milliseconds(30)).has_value());
  EXPECT_THAT(notices_, testing::ElementsAre("waiting for /mnt/in/ck1 to be complete",
                                             HasSubstr("nothing has come for /mnt/in/ck1 in 30")));
}

TEST_F(MountDaemon, AFailedCheckpointIsReportedWithItsReason) {
  const auto checkpoint = checkpoint_of([](const json&) {
    return refusal({EIO, "the source went away"});
  });
  const auto waited = wait(checkpoint, std::nullopt);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().exit_code, ExitCode::kCheckpointFailed);
  EXPECT_THAT(waited.error().message, HasSubstr("the source went away"));
}

TEST_F(MountDaemon, TheTimeoutOfAWaitIsKept) {
  const auto checkpoint = checkpoint_of([](const json& request) -> json {
    if (request.at("op") == "status") return status_with(true, false);
    std::this_thread::sleep_for(milliseconds(request.at("timeout_ms").get<int>()));
    return refusal({ETIMEDOUT, "not yet"});
  });
  const auto waited = wait(checkpoint, milliseconds(150));
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().exit_code, ExitCode::kTimedOut);
  EXPECT_THAT(waited.error().message, HasSubstr("did not appear within 150 ms"));
}

TEST_F(MountDaemon, WithoutASourceNobodyWaitsForACheckpointThatDoesNotExist) {
  const auto checkpoint = checkpoint_of([](const json& request) -> json {
    if (request.at("op") == "status") return status_with(false, false);
    return refusal({ENOENT, "no such checkpoint"});
  });
  const auto waited = wait(checkpoint, std::nullopt);
  ASSERT_FALSE(waited.has_value());
  EXPECT_EQ(waited.error().exit_code, ExitCode::kCheckpointFailed);
  EXPECT_THAT(waited.error().message, HasSubstr("no source is connected"));
}

TEST_F(MountDaemon, ALongRequestIsAnsweredWhenItIsDone) {
  const auto checkpoint = checkpoint_of([](const json& request) -> json {
    if (request.at("op") == "status") return status_with(true, true);
    std::this_thread::sleep_for(milliseconds(2500));  // longer than the client asks in one piece
    return {{"ok", true}, {"files", 3}};
  });
  const auto answer = ask_at_length(checkpoint.mount, {{"op", "commit"}}, std::nullopt);
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->at("files"), 3);
}

TEST_F(MountDaemon, ADaemonThatHasDiedIsSaidToHave) {
  const auto checkpoint = checkpoint_of([](const json&) { return json(); });
  server_.reset();
  const auto answer = ask(checkpoint.mount, {{"op", "status"}});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().exit_code, ExitCode::kDaemonSilent);
  EXPECT_THAT(answer.error().message, HasSubstr("umount -l /mnt/in"));
}

TEST_F(MountDaemon, ADaemonThatDoesNotAnswerIsNotWaitedForLong) {
  std::atomic<bool> end = false;
  const auto checkpoint = checkpoint_of([&](const json&) {
    while (!end) std::this_thread::sleep_for(milliseconds(5));
    return json();
  });
  const auto answer = ask(checkpoint.mount, {{"op", "status"}}, milliseconds(100));
  end = true;
  server_.reset();  // its handler looks at `end`
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().exit_code, ExitCode::kDaemonSilent);
}

TEST(FindCheckpoint, SaysWhatToGiveInstead) {
  const auto outside = find_checkpoint("/");
  ASSERT_FALSE(outside.has_value());
  EXPECT_EQ(outside.error().exit_code, ExitCode::kNotMounted);
  EXPECT_THAT(outside.error().message, HasSubstr("not in a ppmr mount"));
}

}  // namespace
}  // namespace ppmr
