#include "jobs/agent/job_epochs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "migration/protect/part_messages.h"

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
          EXPECT_EQ(captured_, job_hosts_) << "an epoch counts that does not have all nodes";
        }
      }
      if (op == "rollback-run") {
        EXPECT_EQ(stopped_.size(), job_hosts_.size()) << "a node runs before all nodes have ended";
      }
      // The host may have carried out the request although its answer was lost.
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
  job.protection.every_ms = 10'000;
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
  const auto kept = run_epoch(job_of({"a", "b", "c"}, {"d"}), 4, EpochEnd::kGoesOn, hosts.asker());
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
    const auto kept = run_epoch(job_of({"a", "b", "c"}, {}), 4, EpochEnd::kGoesOn, hosts.asker());
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

// Nodes that send each other numbered messages all the time. A message arrives unless the port of
// the sender or of the receiver is cut. A later message also counts as all earlier ones, because
// TCP would retransmit them.
class TalkingNodes {
 public:
  TalkingNodes(unsigned seed, std::vector<std::string> hosts)
      : random_(seed), hosts_(std::move(hosts)) {
    for (const std::string& host : hosts_) nodes_[host];
  }

  AskHost asker() {
    return [this](const std::string& host, const json& request, milliseconds) -> Result<json> {
      const std::lock_guard lock(mutex_);
      talk();
      Node& node = nodes_.at(host);
      const std::string op = request.at("op");
      if (op == "epoch-freeze" && random_() % 20 == 0) return failure(ETIMEDOUT, "no answer");
      if (op == "epoch-freeze") {
        node.is_cut = true;
        talk();  // the other nodes talk while this one is cut off
        node.captured = node.now;
      }
      talk();
      if (op == "epoch-go" && node.is_cut) {
        node.keeps = request.at("keep");
        node.is_cut = false;
      }
      talk();
      if (op == "epoch-await" && request.at("step") == part_message::kKept && !node.keeps) {
        return failure(ECANCELED, "it was given up");
      }
      return json{{"ok", true}};
    };
  }

  // Returns whether, in the epoch, a node has received a message that its sender has not sent yet.
  bool is_torn() const {
    for (const std::string& from : hosts_) {
      for (const std::string& to : hosts_) {
        if (from == to) continue;
        const auto& receiver = nodes_.at(to).captured.received;
        const auto& sender = nodes_.at(from).captured.sent;
        const auto received = receiver.find(from);
        const auto sent = sender.find(to);
        const unsigned count = sent == sender.end() ? 0 : sent->second;
        if (received != receiver.end() && received->second > count) return true;
      }
    }
    return false;
  }
  bool all_run() const {
    return std::none_of(nodes_.begin(), nodes_.end(),
                        [](const auto& node) { return node.second.is_cut; });
  }

 private:
  struct Talk {
    std::map<std::string, unsigned> sent, received;
  };
  struct Node {
    Talk now, captured;
    bool is_cut = false;
    bool keeps = false;
  };

  void talk() {
    for (unsigned i = random_() % 8; i > 0; --i) {
      const std::string& from = hosts_[random_() % hosts_.size()];
      const std::string& to = hosts_[random_() % hosts_.size()];
      Node& sender = nodes_.at(from);
      Node& receiver = nodes_.at(to);
      // A node runs on after its time limit, and then gives the epoch up.
      if (sender.is_cut && random_() % 200 == 0) sender.is_cut = false;
      if (from == to || sender.is_cut) continue;
      const unsigned count = ++sender.now.sent[to];
      if (!receiver.is_cut) receiver.now.received[from] = count;
    }
  }

  std::mutex mutex_;
  std::mt19937 random_;
  const std::vector<std::string> hosts_;
  std::map<std::string, Node> nodes_;
};

TEST(RunEpoch, IsOneCutThroughAllConversations) {
  unsigned kept = 0, torn = 0;
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    TalkingNodes nodes(seed, {"a", "b", "c", "d"});
    const auto epoch =
        run_epoch(job_of({"a", "b", "c", "d"}, {}), 4, EpochEnd::kGoesOn, nodes.asker());
    if (nodes.is_torn()) ++torn;
    if (!epoch) continue;
    ++kept;
    EXPECT_FALSE(nodes.is_torn()) << "seed " << seed;
    EXPECT_TRUE(nodes.all_run()) << "seed " << seed;
  }
  EXPECT_GT(kept, 1'000u);
  EXPECT_GT(torn, 0u) << "the test must produce torn epochs, which must not count";
}

// The partner of the first node has died, and the first node keeps trying to send its epoch there.
TEST(RunEpoch, DoesNotWaitForANodeIfAnotherOneHasFailed) {
  const AskHost ask = [](const std::string& host, const json& request,
                         milliseconds) -> Result<json> {
    const bool awaits_end =
        request.at("op") == "epoch-await" && request.at("step") == part_message::kKept;
    if (awaits_end && host == "b") return failure(ETIMEDOUT, "it is dead");
    return json{{"ok", true}, {"pending", awaits_end}};
  };
  const auto kept = run_epoch(job_of({"a", "b"}, {}), 4, EpochEnd::kGoesOn, ask);
  EXPECT_EQ(kept.error().message, "node b on host b: it is dead");
}

TEST(RollBack, NoNodeRunsBeforeAllHaveEnded) {
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
