#include "jobs/agent/job_protection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "jobs/agent/job_record.h"

namespace ppmr {
namespace {

// Returns a job with nodes on the hosts a, b, c ... The next hosts are its spares.
JobRecord job_of(unsigned nodes, unsigned spares) {
  JobRecord job{.id = "0123abcd", .boot_id = "boot", .port_address = "10.0.0.1"};
  for (unsigned i = 0; i < nodes + spares; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    job.hosts.push_back({.name = name, .state = i < nodes ? HostState::kReady : HostState::kSpare});
    if (i < nodes) job.nodes.push_back({.name = name, .address = "10.0.0.2", .host = name});
  }
  return job;
}

void agree(JobRecord& job, uint64_t number) {
  job.protection.agreed = number;
  job.protection.kept_at.clear();
  const auto partners = choose_partners(job);
  ASSERT_TRUE(partners);
  for (size_t i = 0; i < job.nodes.size(); ++i) {
    job.protection.kept_at.push_back({job.nodes[i].host, (*partners)[i]});
  }
}

std::string text_of(const Result<std::vector<NodeRollback>>& rollbacks) {
  if (!rollbacks) return rollbacks.error().message;
  std::string text;
  for (const NodeRollback& back : *rollbacks) {
    text += back.host + (back.from.empty() ? "" : "<" + back.from) + " ";
  }
  return text;
}

auto lost(std::set<std::string> hosts) {
  return [hosts = std::move(hosts)](const std::string& host) { return hosts.contains(host); };
}

TEST(JobProtection, RecordKeepsEverything) {
  JobRecord job = job_of(2, 1);
  job.protection = {.every_ms = 60'000,
                    .mtbf_ms = 9,
                    .next = 8,
                    .agreed = 6,
                    .agreed_ns = 5,
                    .pause_ms = 4,
                    .bytes = 3,
                    .sent_bytes = 2,
                    .kept_at = {{"a", "b"}, {"b", "c"}},
                    .rolling_back = "a loss",
                    .may_still_answer = true,
                    .rollbacks = 1,
                    .rollbacks_to_agreed = 1};
  EXPECT_EQ(to_json(parse_job_record(to_json(job))), to_json(job));
}

TEST(JobProtection, RecordOfAnEarlierVersionHasNoMtbf) {
  nlohmann::json packed = to_json(job_of(2, 0).protection);
  packed.erase("mtbf_ms");
  EXPECT_EQ(parse_job_protection(packed).mtbf_ms, 0);
}

TEST(JobProtection, IntervalFollowsFromThePauseAndTheFailuresOfAllHosts) {
  using std::chrono::seconds;
  constexpr int64_t kDayMs = 24 * 3600 * 1000;
  JobRecord job = job_of(4, 2);
  job.protection.every_ms = 60'000;
  job.protection.pause_ms = 120;
  EXPECT_EQ(choose_interval(job), seconds(60)) << "the interval that the user has chosen";
  job.protection.mtbf_ms = 120 * kDayMs;
  EXPECT_EQ(choose_interval(job), seconds(789)) << "four hosts fail once in 30 days";
  job.nodes[3].host = job.nodes[2].host;
  job.nodes[1].host = job.nodes[0].host;
  EXPECT_EQ(count_hosts(job), 2u);
  EXPECT_EQ(choose_interval(job), seconds(1115)) << "two nodes on each of two hosts";
  job.protection.mtbf_ms = 1;
  EXPECT_EQ(choose_interval(job), kJobEpochIntervalMin);
}

TEST(JobProtection, PartnerIsTheNextHost) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(choose_partners(job_of(3, 1)).value(), (Names{"b", "c", "d"}));
  EXPECT_EQ(choose_partners(job_of(3, 0)).value(), (Names{"b", "c", "a"}));
  EXPECT_EQ(choose_partners(job_of(1, 0)).error().errno_value, ENOSPC);
  JobRecord job = job_of(3, 1);
  job.hosts[1].state = HostState::kInactive;
  job.nodes[1].host = "d";
  EXPECT_EQ(choose_partners(job).value(), (Names{"c", "a", "d"}));
}

TEST(JobProtection, LostNodeGoesToASpareAndTheOtherNodesStayOnTheirHosts) {
  JobRecord job = job_of(3, 1);
  agree(job, 7);
  EXPECT_EQ(text_of(plan_rollback(job, lost({"b"}))), "a d<c c ");
  EXPECT_EQ(text_of(plan_rollback(job, lost({"c"}))), "a b d ") << "the spare is its partner";
  EXPECT_EQ(text_of(plan_rollback(job, lost({"d"}))), "a b c ");
  EXPECT_EQ(text_of(plan_rollback(job, lost({}))), "a b c ") << "processes of a node have ended";
}

TEST(JobProtection, WithoutASpareTheNodeRunsAtItsPartner) {
  JobRecord job = job_of(3, 0);
  agree(job, 7);
  EXPECT_EQ(text_of(plan_rollback(job, lost({"b"}))), "a c c ");
}

TEST(JobProtection, LossOfAHostAndItsPartnerCannotBeRolledBack) {
  JobRecord job = job_of(4, 2);
  agree(job, 7);
  EXPECT_EQ(plan_rollback(job, lost({"a", "b"})).error().errno_value, ENODATA);
  EXPECT_EQ(text_of(plan_rollback(job, lost({"a", "c"}))), "e<b b f<d d ");
}

TEST(JobProtection, MoveThatIsNotSettledMayStillRun) {
  JobRecord job = job_of(3, 1);
  agree(job, 7);
  EXPECT_EQ(unsettled_move(job), "");
  ASSERT_TRUE(take_step(job.hosts[1], HostEvent::kNodeLeaves));
  ASSERT_TRUE(take_step(job.hosts[3], HostEvent::kChosen));
  job.nodes[1].moving_to = "d";
  EXPECT_EQ(unsettled_move(job), "the move of node b from host b to d is not settled");
}

TEST(JobProtection, NumberOfRollbacksToOneEpochIsLimited) {
  JobProtection protection{.agreed = 7};
  EXPECT_TRUE(can_roll_back(protection));
  protection.rollbacks_to_agreed = kRollbacksToOneEpochMax;
  EXPECT_FALSE(can_roll_back(protection));
  EXPECT_FALSE(can_roll_back({.agreed = 0})) << "no epoch is agreed on";
}

// As long as no two neighbours are lost between two agreements, the job goes on, and every node
// runs on one host that is not lost and keeps its epoch.
TEST(JobProtection, AnySingleLossIsSurvived) {
  for (unsigned seed = 0; seed < 10'000; ++seed) {
    std::mt19937 random(seed);
    JobRecord job = job_of(2 + random() % 4, random() % 3);
    std::set<std::string> gone;
    for (unsigned epoch = 1; job.hosts.size() - gone.size() >= 3; ++epoch) {
      agree(job, epoch);
      std::vector<std::string> left;
      for (const JobHost& host : job.hosts) {
        if (!gone.contains(host.name)) left.push_back(host.name);
      }
      if (random() % 3 > 0) gone.insert(left[random() % left.size()]);
      const auto is_lost = lost(gone);
      const auto rollbacks = plan_rollback(job, is_lost);
      ASSERT_TRUE(rollbacks) << "seed " << seed << ": " << rollbacks.error().message;
      note_rollback(job, *rollbacks, is_lost);
      for (size_t i = 0; i < job.nodes.size(); ++i) {
        const auto& kept_at = job.protection.kept_at[i];
        ASSERT_FALSE(gone.contains(job.nodes[i].host)) << "seed " << seed;
        ASSERT_NE(std::find(kept_at.begin(), kept_at.end(), job.nodes[i].host), kept_at.end())
            << "seed " << seed;
        ASSERT_EQ(job.find_host(job.nodes[i].host)->state, HostState::kReady) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace ppmr
