// Tests an agent over a socket pair. A directory takes the place of the target's mount.
#include "migration/target/migration_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json_text.h"
#include "base/line_socket.h"
#include "base/request_checks.h"
#include "base/test_directory.h"
#include "migration/records/record_store.h"
#include "migration/records/take_to.h"
#include "preflight/preflight.h"

namespace ppmr {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using enum MigrationState;
constexpr MigrationRole kTarget = MigrationRole::kTarget;

class MigrationAgentTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(checkpoint());
    std::ofstream(memory()) << "pages";
    auto store = RecordStore::open(state_directory());
    ASSERT_TRUE(store) << store.error().message;
    OwnershipRecord record;
    record.id = id_;
    record.role = kTarget;
    record.endpoint = json::object();
    record.mountpoint = mountpoint();
    record.peer = "source";
    record.boot_id = read_boot_id();
    record.incarnation = incarnation_here();
    record.audit_file = audit_file();
    record.trees.resize(1);
    record.trees[0].checkpoint = "worker-17";
    ASSERT_TRUE(store->create(std::move(record)));
    ASSERT_TRUE(advance(*store, id_, kTarget, kReady));

    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = UniqueFd(ends[0]);
    agent_ = std::thread([this, fd = ends[1]] {
      MigrationAgent{.fd = fd,
                     .state_directory = state_directory(),
                     .mountpoint = mountpoint(),
                     .peer = peer(),
                     .audit_file = audit_file()}
          .run();
    });
  }
  void TearDown() override {
    socket_.reset();
    if (agent_.joinable()) agent_.join();
  }

  std::string state_directory() const { return directory_ + "/state"; }
  std::string mountpoint() const { return directory_ + "/in"; }
  std::string checkpoint() const { return mountpoint() + "/worker-17"; }
  std::string memory() const { return checkpoint() + ".memory"; }
  RecordStore store() const { return *RecordStore::open(state_directory()); }
  std::string audit_file() const { return directory_ + "/audit.json"; }
  virtual std::string peer() const { return "source"; }
  std::vector<json> audit() const {
    std::vector<json> lines;
    std::ifstream text(audit_file());
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }

  json ask(const json& request) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    std::string reply;
    EXPECT_TRUE(write_line(socket_.get(), json_text(request), deadline));
    EXPECT_TRUE(read_line(socket_.get(), pending_, reply, 1 << 20, deadline));
    return json::parse(reply, nullptr, false);
  }
  json vote() { return ask({{"op", "vote"}, {"id", id_}}); }

  const std::string id_ = random_migration_id();
  const TestDirectory test_directory_;
  const std::string directory_ = test_directory_.path();
  UniqueFd socket_;
  std::string pending_;
  std::thread agent_;
};

TEST_F(MigrationAgentTest, VoteIsValidWhileTheTreeCanBeRestored) {
  EXPECT_TRUE(vote().at("ok"));
  EXPECT_TRUE(vote().at("ok")) << "the request is idempotent";
}

TEST_F(MigrationAgentTest, VoteIsRefusedAfterARestoreFailed) {
  ASSERT_TRUE(store().change(id_, kTarget, [](OwnershipRecord& record) -> Status {
    record.trees[0].error = "process 17: no restore today";
    return {};
  }));
  const json reply = vote();
  EXPECT_FALSE(reply.at("ok"));
  EXPECT_THAT(reply.at("error").get<std::string>(), HasSubstr("no restore today"));
  EXPECT_EQ(store().read(id_, kTarget)->state(), kReady) << "only the source may abort now";
}

TEST_F(MigrationAgentTest, VoteIsRefusedWithoutTheCheckpoint) {
  std::filesystem::remove_all(checkpoint());
  const json reply = vote();
  EXPECT_FALSE(reply.at("ok"));
  EXPECT_THAT(reply.at("error").get<std::string>(), HasSubstr("worker-17"));
}

TEST_F(MigrationAgentTest, VoteIsRefusedWithoutTheMemory) {
  std::filesystem::remove(memory());
  const json reply = vote();
  EXPECT_FALSE(reply.at("ok"));
  EXPECT_THAT(reply.at("error").get<std::string>(), HasSubstr("worker-17.memory"));
}

TEST_F(MigrationAgentTest, AsksCriuOnceForAllPreflightsOfAConnection) {
  const std::string criu = directory_ + "/criu";
  const std::string asked = directory_ + "/asked";
  std::ofstream(criu) << "#!/bin/sh\necho \"$@\" >> " << asked << "\n";
  std::filesystem::permissions(criu, std::filesystem::perms::owner_all);
  setenv("PPMR_CRIU", criu.c_str(), 1);
  const json request = to_request(make_request({}));
  EXPECT_TRUE(ask(request).at("ok"));
  const uintmax_t asked_bytes = std::filesystem::file_size(asked);
  EXPECT_GT(asked_bytes, 0u);
  EXPECT_TRUE(ask(request).at("ok"));
  unsetenv("PPMR_CRIU");
  EXPECT_EQ(std::filesystem::file_size(asked), asked_bytes);
}

TEST_F(MigrationAgentTest, VoteIsRefusedAfterTheAbort) {
  ASSERT_TRUE(advance(store(), id_, kTarget, kAborted));
  EXPECT_FALSE(vote().at("ok"));
}

TEST_F(MigrationAgentTest, TargetThatCannotRestoreAcceptsTheAbort) {
  std::filesystem::remove_all(checkpoint());
  ASSERT_FALSE(vote().at("ok"));
  EXPECT_TRUE(
      ask({{"op", "decide"}, {"id", id_}, {"state", "aborted"}, {"error", "why"}}).at("ok"));
  const auto record = store().read(id_, kTarget);
  EXPECT_EQ(record->state(), kAborted);
  EXPECT_EQ(record->error, "why");
}

TEST_F(MigrationAgentTest, DecisionsAreInTheAuditTrail) {
  ASSERT_TRUE(ask({{"op", "decide"}, {"id", id_}, {"state", "aborted"}}).at("ok"));
  const auto lines = audit();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].at("event"), "migration");
  EXPECT_EQ(lines[0].at("outcome"), "aborted");
  EXPECT_EQ(lines[0].at("migration"), id_);
  EXPECT_EQ(lines[0].at("peer"), "source");
  EXPECT_EQ(lines[0].at("trees")[0].at("checkpoint"), "worker-17");
}

TEST_F(MigrationAgentTest, NamesItsNodeIfItHasNoRecordOfTheMigration) {
  const std::string unknown = random_migration_id();
  for (const json& request :
       {json{{"op", "look"}, {"id", unknown}}, json{{"op", "vote"}, {"id", unknown}},
        json{{"op", "decide"}, {"id", unknown}, {"state", "running"}}}) {
    const json reply = ask(request);
    EXPECT_TRUE(reply.value("no_record", false)) << request;
    EXPECT_EQ(reply.value("node_id", "?"), read_node_id()) << request;
    EXPECT_EQ(reply.value("state_directory", ""), state_directory()) << request;
  }
  EXPECT_FALSE(ask({{"op", "dance"}}).at("no_record"));
}

class AgentOfAnotherPeer : public MigrationAgentTest {
 protected:
  std::string peer() const override { return "another"; }
};

TEST_F(AgentOfAnotherPeer, CannotSeeDecideOrEndTheMigration) {
  for (const json& request : {json{{"op", "look"}, {"id", id_}}, json{{"op", "vote"}, {"id", id_}},
                              json{{"op", "decide"}, {"id", id_}, {"state", "aborted"}},
                              json{{"op", "decide"}, {"id", id_}, {"state", "running"}}}) {
    const json reply = ask(request);
    EXPECT_FALSE(reply.at("ok")) << request;
    EXPECT_THAT(reply.at("error").get<std::string>(), HasSubstr("belongs to another source"));
    EXPECT_FALSE(reply.contains("record"));
  }
  EXPECT_EQ(store().read(id_, kTarget)->state(), kReady);
  const auto lines = audit();
  ASSERT_EQ(lines.size(), 4u);
  for (const json& line : lines) {
    EXPECT_EQ(line.at("outcome"), "refused");
    EXPECT_EQ(line.at("peer"), "another");
    EXPECT_EQ(line.at("migration"), id_);
  }
}

// Another peer, so that no request starts anything.
TEST_F(AgentOfAnotherPeer, GetsAnAnswerToEachDamagedRequest) {
  std::mt19937 random(1);
  const json record = *store().read(id_, kTarget);
  for (const json& request :
       {json{{"op", "prepare"}, {"record", record}}, to_request(make_request({})),
        json{{"op", "look"}, {"id", id_}, {"version", 1}, {"timeout_ms", 1}, {"paused", false}},
        json{{"op", "vote"}, {"id", id_}, {"node_id", "n"}},
        json{{"op", "decide"}, {"id", id_}, {"state", "aborted"}, {"error", "why"}}}) {
    for (int i = 0; i < 50; ++i) {
      json damaged = request_checks::damaged(request, random);
      damaged["op"] = request.at("op");
      const json reply = ask(damaged);
      ASSERT_TRUE(reply.is_object() && reply.contains("ok")) << json_text(damaged);
    }
  }
  EXPECT_EQ(store().read(id_, kTarget)->state(), kReady);
}

TEST_F(MigrationAgentTest, RefusesMalformedAndUnknownRequests) {
  EXPECT_FALSE(ask({{"op", "dance"}}).at("ok"));
  EXPECT_FALSE(ask({{"id", id_}}).at("ok"));
  EXPECT_FALSE(ask(json::array()).at("ok"));
  EXPECT_FALSE(ask({{"op", "vote"}, {"id", "../../etc"}}).at("ok"));
  EXPECT_EQ(ask({{"op", "decide"}, {"id", id_}}).at("error"),
            "malformed request 'decide': state is missing");
}

}  // namespace
}  // namespace ppmr
