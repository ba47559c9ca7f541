#include "jobs/agent/job_suspension.h"

#include <gtest/gtest.h>

#include <map>

#include "base/mutex.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

SuspendedJob suspended_job() {
  return {.suspension = "0123456789abcdef",
          .job = "0123abcd",
          .uid = 1000,
          .token = "token",
          .epoch = 4,
          .frozen_ns = 17,
          .bytes = 30,
          .nodes = {{"a", "10.0.0.2"}, {"b", "10.0.0.3"}},
          .launcher = {{"command", "c"}}};
}

JobRecord record_of_user(uid_t uid) {
  JobRecord record{.id = "ffffffff", .boot_id = "boot", .port_address = ""};
  record.user.uid = uid;
  return record;
}

TEST(SuspendedJob, IsTheSameAfterConversionToJsonAndBack) {
  const auto parsed = parse_suspended_job(to_json(suspended_job()));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(to_json(*parsed), to_json(suspended_job()));
}

TEST(SuspendedJob, WrongFieldsAreRefused) {
  const std::map<std::string, json> wrong = {{"suspension", "../../etc"},
                                             {"job", "../x"},
                                             {"nodes", json::array()},
                                             {"epoch", 0},
                                             {"uid", "me"},
                                             {"launcher", nullptr}};
  for (const auto& [name, value] : wrong) {
    json packed = to_json(suspended_job());
    if (value.is_null()) {
      packed.erase(name);
    } else {
      packed[name] = value;
    }
    const auto parsed = parse_suspended_job(packed);
    ASSERT_FALSE(parsed) << name;
    EXPECT_EQ(parsed.error().errno_value, EPROTO) << name;
  }
}

TEST(PlanResumption, NodesKeepTheirNamesAndAddressesOnOtherHosts) {
  const auto job = plan_resumption(suspended_job(), record_of_user(1000), {"c", "d"}, {"e"});
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_EQ(job->id, "0123abcd");
  EXPECT_EQ(job->hosts_text(), "10.0.0.2 a\n10.0.0.3 b\n");
  EXPECT_EQ(hosts_of(*job), (std::vector<std::string>{"c", "d"}));
  EXPECT_EQ(job->find_host("e")->state, HostState::kSpare);
  EXPECT_EQ(job->protection.agreed, 4u);
  EXPECT_EQ(job->protection.next, 5u) << "no number is used twice";
}

TEST(PlanResumption, NeedsTheOwnerAndAsManyHostsAsNodes) {
  EXPECT_EQ(
      plan_resumption(suspended_job(), record_of_user(1001), {"c", "d"}, {}).error().errno_value,
      EACCES);
  EXPECT_EQ(plan_resumption(suspended_job(), record_of_user(1000), {"c"}, {}).error().errno_value,
            EINVAL);
}

// Hosts that need some requests to write the file of their node.
class WritingHosts {
 public:
  explicit WritingHosts(std::map<std::string, int> requests) : left_(std::move(requests)) {}

  AskHost asker() {
    return [this](const std::string& host, const json& request, milliseconds) -> Result<json> {
      MutexLock lock(mutex_);
      if (request.at("op") == "suspend-hold") {
        ++held_[host];
        return json{{"ok", true}};
      }
      if (host == failing_) return failure(ENOSPC, "the disk is full");
      return json{{"ok", true}, {"pending", --left_[host] > 0}};
    };
  }

  Mutex mutex_;
  std::map<std::string, int> left_;
  std::map<std::string, int> held_;
  std::string failing_;
};

JobRecord running_job() {
  auto job = plan_resumption(suspended_job(), record_of_user(1000), {"a", "b"}, {});
  return *job;
}

TEST(WriteNodes, NodeThatIsDoneIsHeldUntilAllAreDone) {
  WritingHosts hosts({{"a", 1}, {"b", 5}});
  const Status written = write_nodes(running_job(), 4, {"/d", "0123456789abcdef"}, hosts.asker());
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(hosts.held_["a"], 4);
  EXPECT_EQ(hosts.held_["b"], 0) << "a request to write also holds the node";
}

TEST(WriteNodes, ErrorNamesTheNodeThatFailed) {
  WritingHosts hosts({{"a", 3}, {"b", 3}});
  hosts.failing_ = "b";
  const Status written = write_nodes(running_job(), 4, {"/d", "0123456789abcdef"}, hosts.asker());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message, "node b on host b: the disk is full");
}

}  // namespace
}  // namespace ppmr
