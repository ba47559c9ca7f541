#include "jobs/agent/home_jobs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "jobs/agent/parallel.h"

namespace ppmr {
namespace {

constexpr uid_t kOwner = 1000;

// A home with one job that an earlier agent left. The job has nodes on a and b, and spares c and d.
struct HomeJobsTest : testing::Test {
  HomeJobsTest() {
    std::filesystem::remove_all(directory);
    JobRecord job{.id = "0123abcd",
                  .user = {.uid = kOwner, .gid = 100, .groups = {100}},
                  .token = "secret",
                  .launcher = identify_self(),
                  .boot_id = read_boot_id(),
                  .port_address = "10.0.0.1"};
    for (const char* name : {"a", "b"}) {
      job.hosts.push_back({.name = name});
      job.nodes.push_back({.name = name,
                           .address = std::string("10.0.0.") + (*name == 'a' ? "2" : "3"),
                           .host = name});
    }
    for (const char* name : {"c", "d"}) {
      job.hosts.push_back({.name = name, .state = HostState::kSpare});
    }
    (void)RecordFiles::open(directory)->write(job.id, to_json(job));
    reopen();
  }

  // Opens the records again, as a new agent does.
  void reopen() {
    home = std::make_unique<HomeJobs>(
        HomeOptions{
            .host = "a",
            .addresses = *parse_address_range("10.0.0.0/24"),
            .ask = [this](const std::string& host, const auto&, auto) -> Result<nlohmann::json> {
              MutexLock lock(mutex);
              if (failures.contains(host)) return failure(failures[host], "no answer");
              return nlohmann::json{{"pool", to_json(pools[host])}};
            }},
        *RecordFiles::open(directory));
  }
  // Returns the states of the hosts as users see them.
  std::string states() const {
    std::string text;
    const nlohmann::json job = home->views(0).at(0);
    for (const auto& host : job.at("hosts")) text += host.at("state").get<std::string>() + " ";
    return text;
  }
  // The host reports that it was evacuated (`out`), or returned.
  void report(const std::string& host, int64_t changed_ns, bool out) {
    MutexLock lock(mutex);
    pools[host] = {.changed_ns = changed_ns, .out = out ? std::set<uid_t>{0} : std::set<uid_t>{}};
  }
  void fail(const std::string& host, int error) {
    MutexLock lock(mutex);
    failures[host] = error;
  }
  std::string place(unsigned index) const {
    const auto place = home->place(id, index, "x");
    return place ? place->first + ">" + place->second : place.error().message;
  }
  Status settle(const std::string& from, bool moved, bool spare_failed = false) {
    return home->settle({.job = id,
                         .index = from == "a" ? 0U : 1U,
                         .from = from,
                         .moved = moved,
                         .spare_failed = spare_failed,
                         .downtime_s = 0.5,
                         .error = moved ? "" : "a reason"});
  }

  const std::string id = "0123abcd";
  const std::string directory = testing::TempDir() + "/home_jobs_test";
  Mutex mutex;
  std::map<std::string, int> failures PPMR_GUARDED_BY(mutex);  // errno of each host that fails
  std::map<std::string, PoolReport> pools PPMR_GUARDED_BY(mutex);
  std::unique_ptr<HomeJobs> home;
};

TEST_F(HomeJobsTest, MovedNodeBelongsToTheSpareAndItsHostIsOut) {
  EXPECT_EQ(home->reserve(id, 0, "a", "").value(), "c");
  EXPECT_EQ(states(), "moving ready moving spare ");
  EXPECT_EQ(place(0), "a>c");
  ASSERT_TRUE(settle("a", true));
  EXPECT_EQ(states(), "out ready ready spare ");
  EXPECT_EQ(place(0), "c>");
  EXPECT_EQ(home->list(0)[0].nodes[0].moves.at(0).downtime_s, 0.5);
}

TEST_F(HomeJobsTest, NodeThatStayedGivesTheSpareBack) {
  ASSERT_TRUE(home->reserve(id, 0, "a", ""));
  ASSERT_TRUE(settle("a", false));
  EXPECT_EQ(states(), "ready ready spare spare ");
  EXPECT_EQ(place(0), "a>");
  EXPECT_EQ(home->list(0)[0].nodes[0].moves.at(0).error, "a reason");
}

TEST_F(HomeJobsTest, SpareThatFailedIsNotChosenAgain) {
  ASSERT_TRUE(home->reserve(id, 0, "a", ""));
  ASSERT_TRUE(settle("a", false, true));
  EXPECT_EQ(states(), "ready ready inactive spare ");
  EXPECT_EQ(home->reserve(id, 0, "a", "").value(), "d");
}

TEST_F(HomeJobsTest, SpareOfAFailedMoveIsTheLastChoice) {
  ASSERT_EQ(home->reserve(id, 0, "a", "").value(), "c");
  ASSERT_TRUE(settle("a", false));
  ASSERT_EQ(home->reserve(id, 0, "a", "").value(), "d");
  ASSERT_TRUE(settle("a", false));
  EXPECT_EQ(home->reserve(id, 0, "a", "").value(), "c");
}

TEST_F(HomeJobsTest, DeadSparesArePassedOver) {
  fail("c", ETIMEDOUT);
  EXPECT_EQ(home->reserve(id, 0, "a", "").value(), "d");
  EXPECT_EQ(states(), "moving ready lost moving ");
}

TEST_F(HomeJobsTest, WithoutASpareTheRefusalSaysWhyEachHostIsNotAvailable) {
  fail("c", ETIMEDOUT);
  report("d", 1, true);
  const auto reserved = home->reserve(id, 0, "a", "");
  ASSERT_FALSE(reserved);
  EXPECT_EQ(reserved.error().errno_value, ENOSPC);
  EXPECT_NE(reserved.error().message.find("c is lost (no answer); d is out (evacuated)"),
            std::string::npos)
      << reserved.error().message;
  EXPECT_EQ(states(), "ready ready lost out ");
}

TEST_F(HomeJobsTest, LostHostThatAnswersAgainHasItsFormerState) {
  fail("b", EHOSTUNREACH);
  fail("c", EHOSTUNREACH);
  EXPECT_FALSE(home->reserve(id, 0, "a", "c"));
  EXPECT_EQ(states(), "ready ready lost spare ");
  home->note_host("c", {});
  EXPECT_EQ(states(), "ready ready spare spare ");
}

TEST_F(HomeJobsTest, HostThatItsNodeHasLeftIsASpareAgainAfterItsReturn) {
  home->note_host("a", {.changed_ns = 5, .out = {0}});
  EXPECT_EQ(states(), "ready ready spare spare ") << "its node has not left yet";
  ASSERT_TRUE(home->reserve(id, 0, "a", ""));
  ASSERT_TRUE(settle("a", true));
  home->note_host("a", {.changed_ns = 4});
  EXPECT_EQ(states(), "out ready ready spare ") << "the report is old";
  home->note_host("a", {.changed_ns = 6});
  EXPECT_EQ(states(), "spare ready ready spare ");
  reopen();
  EXPECT_EQ(states(), "spare ready ready spare ");
}

TEST_F(HomeJobsTest, SpareThatFailedIsASpareAgainAfterItsReturn) {
  ASSERT_TRUE(home->reserve(id, 0, "a", "c"));
  ASSERT_TRUE(settle("a", false, true));
  home->note_host("c", {});
  EXPECT_EQ(states(), "ready ready inactive spare ");
  home->note_host("c", {.changed_ns = 1});
  EXPECT_EQ(states(), "ready ready spare spare ");
}

TEST_F(HomeJobsTest, HostThatAUserEvacuatedIsOutForThatUsersJobs) {
  home->note_host("c", {.changed_ns = 1, .out = {kOwner + 1}});
  home->note_host("d", {.changed_ns = 1, .out = {kOwner}});
  EXPECT_EQ(states(), "ready ready spare out ");
}

TEST_F(HomeJobsTest, EpochNoticesThatAHostDoesNotAnswer) {
  JobRecord job = home->list(0).at(0);
  job.protection.every_ms = 1000;
  (void)RecordFiles::open(directory)->write(job.id, to_json(job));
  reopen();
  fail("b", ETIMEDOUT);
  home->protect();
  home->await_protection();
  EXPECT_EQ(states(), "ready lost spare spare ");
}

TEST_F(HomeJobsTest, JobThatIsEndingHasNoNodes) {
  JobRecord job = home->list(0)[0];
  job.ending = true;
  ASSERT_TRUE(RecordFiles::open(directory)->write(job.id, to_json(job)));
  reopen();
  EXPECT_EQ(home->list(0).size(), 0u);
  EXPECT_EQ(place(0), "job 0123abcd has ended");
  EXPECT_EQ(home->reserve(id, 0, "a", "").error().errno_value, ENOENT);
}

TEST_F(HomeJobsTest, OnlyTheHostOfANodeThatDoesNotMoveCanReportItsLoss) {
  home->lose(id, 0, "b", "its step has ended");
  ASSERT_TRUE(home->reserve(id, 0, "a", ""));
  home->lose(id, 0, "a", "its step has ended");
  home->lose(id, 7, "a", "its step has ended");
  EXPECT_TRUE(home->exists(id));
}

TEST_F(HomeJobsTest, JobWhoseRecordCannotBeReadHasNotEnded) {
  ASSERT_TRUE(RecordFiles::open(directory)->write("deadbeef", {{"job", "deadbeef"}}));
  reopen();
  EXPECT_EQ(home->place("deadbeef", 0, "a").error().errno_value, EIO);
  EXPECT_EQ(home->place("ffffffff", 0, "a").error().errno_value, ENOENT);
}

TEST_F(HomeJobsTest, LastMovesAreKept) {
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(home->reserve(id, 0, "a", ""));
    ASSERT_TRUE(settle("a", false));
  }
  EXPECT_EQ(home->list(0)[0].nodes[0].moves.size(), 16u);
}

TEST_F(HomeJobsTest, ReservationThatCannotBeRecordedFails) {
  std::filesystem::remove_all(directory);
  EXPECT_FALSE(home->reserve(id, 0, "a", ""));
  EXPECT_EQ(states(), "ready ready spare spare ");
}

TEST_F(HomeJobsTest, RepeatedSettlementChangesNothing) {
  ASSERT_TRUE(home->reserve(id, 0, "a", ""));
  ASSERT_TRUE(settle("a", true));
  ASSERT_TRUE(settle("a", true));
  ASSERT_TRUE(settle("a", false));
  EXPECT_EQ(states(), "out ready ready spare ");
  EXPECT_EQ(home->list(0)[0].nodes[0].moves.size(), 1u);
}

TEST_F(HomeJobsTest, NodeThatMovesCannotMoveASecondTime) {
  ASSERT_TRUE(home->reserve(id, 0, "a", ""));
  EXPECT_EQ(home->reserve(id, 0, "a", "").error().errno_value, EBUSY);
  EXPECT_EQ(home->reserve(id, 1, "b", "").value(), "d");
}

TEST_F(HomeJobsTest, WithoutASpareTheNodeStays) {
  EXPECT_EQ(home->reserve(id, 0, "a", "b").error().errno_value, ENOSPC);
  EXPECT_EQ(home->reserve(id, 0, "a", "a").error().errno_value, ENOSPC);
  EXPECT_EQ(home->reserve(id, 0, "a", "x").error().errno_value, ENOSPC);
  ASSERT_TRUE(home->reserve(id, 0, "a", "d"));
  ASSERT_TRUE(home->reserve(id, 1, "b", "c"));
  ASSERT_TRUE(settle("a", true));
  EXPECT_EQ(home->reserve(id, 0, "d", "").error().errno_value, ENOSPC);
  EXPECT_EQ(states(), "out moving moving ready ");
}

TEST_F(HomeJobsTest, HostThatDoesNotHaveTheNodeCannotReserveASpare) {
  EXPECT_EQ(home->reserve(id, 0, "b", "").error().errno_value, ENOENT);
  EXPECT_EQ(home->reserve(id, 7, "a", "").error().errno_value, ENOENT);
  EXPECT_EQ(home->reserve("ffffffff", 0, "a", "").error().errno_value, ENOENT);
  EXPECT_EQ(states(), "ready ready spare spare ");
}

TEST_F(HomeJobsTest, ReservationSurvivesTheAgent) {
  ASSERT_TRUE(home->reserve(id, 0, "a", ""));
  reopen();
  EXPECT_EQ(states(), "moving ready moving spare ");
  EXPECT_EQ(place(0), "a>c");
  ASSERT_TRUE(settle("a", true));
  reopen();
  EXPECT_EQ(place(0), "c>");
}

TEST_F(HomeJobsTest, OnlyTheOwnerAndRootSeeAndEndAJob) {
  EXPECT_EQ(home->list(kOwner).size(), 1u);
  EXPECT_EQ(home->list(0).size(), 1u);
  EXPECT_EQ(home->list(kOwner + 1).size(), 0u);
  EXPECT_EQ(home->end(id, kOwner + 1, {}).error().errno_value, EPERM);
  EXPECT_EQ(place(0), "a>");
}

TEST_F(HomeJobsTest, JobWhoseLauncherLivesIsKept) {
  home->tend();
  EXPECT_EQ(place(0), "a>");
}

TEST_F(HomeJobsTest, UsersDoNotSeeTheToken) {
  EXPECT_EQ(home->views(0)[0].dump().find("secret"), std::string::npos);
}

TEST(AddressRange, FirstAndLastAddressAreLeftOut) {
  const auto range = parse_address_range("10.3.7.9/29");
  ASSERT_TRUE(range);
  EXPECT_EQ(format_address(range->first), "10.3.7.9");
  EXPECT_EQ(format_address(range->last), "10.3.7.14");
  for (const char* wrong : {"", "10.3.7.0", "10.3.7.0/30", "10.3.7.0/7", "x/24", "10.3.7/24"}) {
    EXPECT_FALSE(parse_address_range(wrong)) << wrong;
  }
}

TEST(AddressPool, AddressThatBecameFreeIsTheLastToBeUsedAgain) {
  AddressPool pool(*parse_address_range("10.0.0.0/29"));
  pool.take("10.0.0.2");
  EXPECT_EQ(pool.take_next().value(), "10.0.0.1");
  pool.give_back("10.0.0.1");
  for (const char* expected : {"10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.1"}) {
    EXPECT_EQ(pool.take_next().value(), expected);
  }
  EXPECT_EQ(pool.take_next().error().errno_value, EADDRNOTAVAIL);
}

TEST(ForEachInParallel, DoesTheWorkForEachNumberOnceAndReturnsAnError) {
  std::vector<std::atomic<int>> calls(100);
  const Status done = for_each_in_parallel(calls.size(), [&](size_t i) -> Status {
    ++calls[i];
    return i == 42 ? failure(EBUSY, "42") : Status{};
  });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message, "42");
  for (const auto& count : calls) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace ppmr
