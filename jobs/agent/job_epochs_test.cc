#include "jobs/agent/job_epochs.h"

#include <gtest/gtest.h>

#include <mutex>
#include <random>
#include <set>

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// The hosts of a job, some of whose answers fail.
class Hosts {
 public:
  explicit Hosts(unsigned seed, double failures) : random_(seed), failures_(failures) {}

  AskHost asker() {
    return [this](const std::string& host, const json& request, milliseconds) -> Result<json> {
      const std::lock_guard lock(mutex_);
      const std::string op = request.at("op");
      asked_.push_back({op, host, request});
      const bool fails = std::uniform_real_distribution<>(0, 1)(random_) < failures_;
      if (op == "epoch-freeze") {
        EXPECT_TRUE(let_go_.empty()) << "a node has run on before all were captured";
        frozen_.insert(host);
      }
      if (op == "epoch-go") {
        let_go_.insert(host);
        if (request.at("keep")) {
          EXPECT_EQ(captured_, job_hosts_) << "an epoch counts that has not all nodes";
        }
      }
      if (op == "rollback-run") {
        EXPECT_EQ(stopped_.size(), job_hosts_.size()) << "a node runs while another one does";
      }
      // The request may have been carried out although its answer was lost.
      if (fails) return failure(ETIMEDOUT, "lost");
      if (op == "epoch-freeze") captured_.insert(host);
      if (op == "rollback-stop") stopped_.insert(host);
      if (op == "epoch-await") {
        const bool is_pending = random_() % 3 == 0;
        return json{{"ok", true}, {"pending", is_pending}, {"bytes", 10}, {"pause_ms", 7}};
      }
      return json{{"ok", true}};
    };
  }

  std::vector<std::string> asked(const std::string& op) const {
    std::vector<std::string> hosts;
    for (const Asked& each : asked_) {
      if (each.op == op) hosts.push_back(each.host);
    }
    std::sort(hosts.begin(), hosts.end());
    return hosts;
  }

  struct Asked {
    std::string op, host;
    json request;
  };
  std::mutex mutex_;
  std::mt19937 random_;
  const double failures_;
  std::vector<Asked> asked_;
  std::set<std::string> job_hosts_, frozen_, captured_, let_go_, stopped_;
};

JobRecord job_of(const std::vector<std::string>& names, const std::vector<std::string>& spares) {
  JobRecord job{.id = "0123abcd", .boot_id = "boot", .port_address = "10.0.0.1"};
  for (const std::string& name : names) {
    job.hosts.push_back({.name = name});
    job.nodes.push_back({.name = name, .address = "10.0.0.2", .host = name});
  }
  for (const std::string& name : spares) {
    job.hosts.push_back({.name = name, .state = HostState::kSpare});
  }
  return job;
}

TEST(RunEpoch, NodesRunOnWhenAllAreCaptured) {
  Hosts hosts(1, 0);
  hosts.job_hosts_ = {"a", "b", "c"};
  const auto kept = run_epoch(job_of({"a", "b", "c"}, {"d"}), 4, hosts.asker());
  ASSERT_TRUE(kept) << kept.error().message;
  EXPECT_EQ(kept->bytes, 30u);
  EXPECT_EQ(kept->pause_ms, 7);
  EXPECT_EQ(kept->kept_at,
            (std::vector<std::vector<std::string>>{{"a", "b"}, {"b", "c"}, {"c", "d"}}));
}

TEST(RunEpoch, FailureOfOneNodeLetsAllRunOn) {
  unsigned failed = 0;
  for (unsigned seed = 0; seed < 2'000; ++seed) {
    Hosts hosts(seed, 0.05);
    hosts.job_hosts_ = {"a", "b", "c"};
    const auto kept = run_epoch(job_of({"a", "b", "c"}, {}), 4, hosts.asker());
    if (!kept) ++failed;
    if (hosts.frozen_.empty()) continue;
    EXPECT_EQ(hosts.let_go_, hosts.job_hosts_) << "seed " << seed;
    if (kept) {
      EXPECT_EQ(hosts.captured_, hosts.job_hosts_) << "seed " << seed;
    }
  }
  EXPECT_GT(failed, 500u);
  EXPECT_LT(failed, 1'500u);
}

TEST(GoBack, NoNodeRunsBeforeAllHaveEnded) {
  JobRecord job = job_of({"a", "b", "c"}, {"d"});
  job.protection.agreed = 4;
  const std::vector<NodeRollback> rollbacks = {{"a", ""}, {"d", "c"}, {"c", ""}};
  for (unsigned seed = 0; seed < 2'000; ++seed) {
    Hosts hosts(seed, seed == 0 ? 0 : 0.05);
    hosts.job_hosts_ = {"a", "c", "d"};
    const Status back = roll_back(job, "home", rollbacks, hosts.asker());
    if (seed == 0) {
      ASSERT_TRUE(back) << back.error().message;
    }
    if (!back) continue;
    EXPECT_EQ(hosts.asked("rollback-run"), (std::vector<std::string>{"a", "c", "d"}));
    EXPECT_EQ(hosts.asked("join"), (std::vector<std::string>{"d"}));
    EXPECT_EQ(hosts.asked("epoch-forward"), (std::vector<std::string>{"c"}));
  }
}

}  // namespace
}  // namespace ppmr
