#include "jobs/agent/home_jobs.h"

#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "jobs/agent/parallel.h"
#include "jobs/agent/requests.h"
#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

constexpr uid_t kOwner = 1000;

// A home with one job that an earlier agent left. The job has nodes on a and b, and spares c and d.
struct HomeJobsTest : testing::Test {
  HomeJobsTest() {
    std::filesystem::remove_all(directory);
    put_job();
    reopen();
  }

  // Writes the record of the job, as its home began it.
  void put_job() const {
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
  }

  // Opens the records again, as a new agent does.
  void reopen(std::chrono::seconds host_timeout = std::chrono::seconds(300),
              const std::string& fence = "") {
    home = std::make_unique<HomeJobs>(
        HomeOptions{.host = "a",
                    .addresses = *parse_address_range("10.0.0.0/24"),
                    .ask = [this](const std::string& host, const nlohmann::json& request,
                                  std::chrono::milliseconds patience) -> Result<nlohmann::json> {
                      const std::string op = request.at("op");
                      if (dies_now(host, op)) at_death();
                      if (op == host_request::EpochAwait::kName && host == waits) {
                        at_wait();
                        return nlohmann::json{{"pending", true}};
                      }
                      MutexLock lock(mutex);
                      patiences[{host, op}] = patience;
                      requests[{host, op}] = request;
                      if (failures.contains(host)) return failure(failures[host], "no answer");
                      return nlohmann::json{{"pool", to_json(pools[host])}};
                    },
                    .host_timeout = host_timeout,
                    .dead_after = std::chrono::seconds(0),
                    .fence = fence},
        *RecordFiles::open(directory));
  }
  bool dies_now(const std::string& host, const std::string& op) {
    MutexLock lock(mutex);
    return dies_at[host] == op && failures.emplace(host, ETIMEDOUT).second;
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
  std::map<std::string, std::string> dies_at PPMR_GUARDED_BY(mutex);  // host and operation
  std::function<void()> at_death = [] {};
  std::string waits;  // a host whose steps of an epoch do not end
  std::function<void()> at_wait = [] {};
  // How long the home waited at most for the last answer; for each host and operation.
  std::map<std::pair<std::string, std::string>, std::chrono::milliseconds> patiences
      PPMR_GUARDED_BY(mutex);
  std::map<std::pair<std::string, std::string>, nlohmann::json> requests PPMR_GUARDED_BY(mutex);
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

TEST_F(HomeJobsTest, EpochDoesNotWaitLongForAHostThatDiesInIt) {
  JobRecord job = home->list(0).at(0);
  job.protection.every_ms = 1000;
  (void)RecordFiles::open(directory)->write(job.id, to_json(job));
  reopen();
  {
    MutexLock lock(mutex);
    dies_at["b"] = host_request::EpochFreeze::kName;
  }
  home->protect();
  home->await_protection();
  MutexLock lock(mutex);
  const std::string go = host_request::EpochGo::kName;
  ASSERT_TRUE(patiences.contains({"b", go})) << "the node may still stand still";
  EXPECT_LE((patiences[{"b", go}]), std::chrono::milliseconds(1500));
  EXPECT_GE((patiences[{"a", go}]), std::chrono::seconds(5)) << "a host that answers may be busy";
}

// Host b dies in the first step of an epoch, and is a host of the job no longer.
TEST_F(HomeJobsTest, JobIsRolledBackAtOnceAfterTheEpochThatALossHasEnded) {
  JobRecord job = home->list(0).at(0);
  job.protection.every_ms = 1000;
  job.protection.agreed = 1;
  job.protection.kept_at = {{"a"}, {"a"}};
  (void)RecordFiles::open(directory)->write(job.id, to_json(job));
  reopen(std::chrono::seconds(300), "/bin/true");
  {
    MutexLock lock(mutex);
    dies_at["b"] = host_request::EpochBegin::kName;
    at_death = [this] { home->lose(id, 1, "b", "its processes have ended"); };
  }
  home->protect();
  home->await_protection();
  EXPECT_EQ(home->list(0).at(0).protection.rollbacks, 1u);
  EXPECT_EQ(place(1), "c>");
}

// Host b has kept its part of the epoch, and dies. It is the partner of host a.
TEST_F(HomeJobsTest, EpochDoesNotWaitForAPartnerThatWasLost) {
  JobRecord job = home->list(0).at(0);
  job.protection.every_ms = 1000;
  job.protection.agreed = 1;
  job.protection.kept_at = {{"a"}, {"a"}};
  (void)RecordFiles::open(directory)->write(job.id, to_json(job));
  reopen(std::chrono::seconds(300), "/bin/true");
  waits = "a";
  at_wait = [this] {
    fail("b", ETIMEDOUT);
    home->lose(id, 1, "b", "its processes have ended");
  };
  home->protect();
  home->await_protection();
  EXPECT_EQ(home->list(0).at(0).protection.rollbacks, 1u);
}

TEST_F(HomeJobsTest, RollbackWaitsForTheNameServiceWithoutLimit) {
  JobRecord job = home->list(0).at(0);
  job.protection.every_ms = 1000;
  job.protection.rolling_back = "host b did not answer";
  (void)RecordFiles::open(directory)->write(job.id, to_json(job));
  const auto is_there_after = [&](int error) {
    fail("b", error);
    reopen(std::chrono::seconds(0));
    home->protect();
    home->await_protection();
    return home->exists(id).has_value();
  };
  EXPECT_TRUE(is_there_after(no_address_error("b:7441", EAI_AGAIN).errno_value));
  EXPECT_FALSE(is_there_after(ECONNREFUSED));
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
  // The host of a node removes the node if its job has ended, and the launcher of the job ends.
  const auto settle_of = [&](const std::string& job) {
    const Status settled = home->settle(
        {.job = job, .index = 0, .from = "a", .moved = false, .spare_failed = false, .error = ""});
    return settled ? 0 : settled.error().errno_value;
  };
  EXPECT_EQ(settle_of("deadbeef"), EIO);
  EXPECT_EQ(settle_of("ffffffff"), ENOENT);
  EXPECT_EQ(home->exists("deadbeef").error().errno_value, EIO);
  EXPECT_EQ(home->exists("ffffffff").error().errno_value, ENOENT);
}

TEST_F(HomeJobsTest, PortIsStrayOnlyIfItsJobHasNoRecord) {
  ASSERT_TRUE(RecordFiles::open(directory)->write("deadbeef", {{"job", "deadbeef"}}));
  reopen();
  EXPECT_TRUE(home->is_stray_port("ppmr-ffffffff-home"));
  for (const char* name :
       {"ppmr-0123abcd-home", "ppmr-deadbeef-home", "ppmr-home", "ppmr--home", "blue"}) {
    EXPECT_FALSE(home->is_stray_port(name)) << name;
  }
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

// The job has an epoch. Host b does not answer.
struct Rollback : HomeJobsTest {
  // `earlier`: the host where an earlier try may have started node b; empty: there was no earlier
  // try. `dead`: the hosts that are dead according to the fence. `error`: why b does not answer.
  void roll_back(const std::string& earlier, const std::string& dead, int error = ETIMEDOUT,
                 std::chrono::seconds host_timeout = std::chrono::seconds(300)) {
    fail("b", error);
    JobRecord job = home->list(0).at(0);
    job.protection.every_ms = 1000;
    job.protection.agreed = 1;
    job.protection.rolling_back = "host b did not answer";
    job.protection.kept_at = {{"a"}, keepers_of_b};
    job.nodes[1].moving_to = earlier;
    (void)RecordFiles::open(directory)->write(job.id, to_json(job));
    const std::string fence = testing::TempDir() + "/home_jobs_test_fence";
    std::ofstream(fence) << "#!/bin/sh\ncase \"" << dead << "\" in *$1*) exit 0;; esac; exit 1\n";
    std::filesystem::permissions(fence, std::filesystem::perms::owner_all);
    reopen(host_timeout, fence);
    home->protect();
    home->await_protection();
  }
  bool was_asked(const std::string& host, const char* op) {
    MutexLock lock(mutex);
    return patiences.contains({host, op});
  }

  std::vector<std::string> keepers_of_b = {"a"};  // the hosts that keep the epoch of node b
};

TEST_F(Rollback, RunsTheNodeAtASpare) {
  roll_back("", "b");
  EXPECT_TRUE(was_asked("c", host_request::RollbackRun::kName));
  EXPECT_EQ(place(1), "c>");
}

TEST_F(Rollback, WaitsForTheFenceOfAHostWhereAnEarlierTryMayRunTheNode) {
  fail("c", ETIMEDOUT);
  roll_back("c", "b");
  EXPECT_FALSE(was_asked("d", host_request::RollbackRun::kName)) << "the node may run at c";
  roll_back("c", "b c");
  EXPECT_TRUE(was_asked("d", host_request::RollbackRun::kName));
}

TEST_F(Rollback, StopsTheNodeAtTheHostOfAnEarlierTry) {
  roll_back("d", "b");
  EXPECT_TRUE(was_asked("d", host_request::RollbackStop::kName));
  EXPECT_TRUE(was_asked("c", host_request::RollbackRun::kName));
}

TEST_F(Rollback, EpochIsLostOnlyIfAllHostsThatKeepItAreCertainlyDead) {
  keepers_of_b = {"b", "c"};
  for (const int error : {kNoAddress, ETIMEDOUT}) {
    fail("c", error);
    roll_back("", "b");
    EXPECT_TRUE(home->exists(id)) << "host c, a spare, may live";
  }
  roll_back("", "b c");
  EXPECT_FALSE(home->exists(id));
}

TEST_F(Rollback, DoesNotWaitForASpareThatIsAwayAndLeavesItASpare) {
  for (const int error : {kNoAddress, ECONNREFUSED, ETIMEDOUT, EPERM}) {
    SCOPED_TRACE(error);
    put_job();
    reopen();
    fail("c", error);
    roll_back("", "b");
    EXPECT_TRUE(was_asked("d", host_request::RollbackRun::kName));
    const JobRecord job = home->list(0).at(0);
    EXPECT_EQ(job.find_host("c")->state, HostState::kSpare);
    EXPECT_EQ(job.find_host("b")->state, HostState::kInactive);
  }
}

TEST_F(Rollback, TakesNoEpochFromAHostThatIsAway) {
  keepers_of_b = {"c", "a"};
  fail("c", ECONNREFUSED);
  roll_back("", "b");
  EXPECT_EQ(place(1), "d>");
}

TEST_F(Rollback, DoesNotRunTheNodeIfTheFenceDoesNotConfirmThatItsHostIsDead) {
  roll_back("", "");
  EXPECT_FALSE(was_asked("c", host_request::RollbackRun::kName));
}

// A fence may switch off the host, which lives if only the name service fails.
TEST_F(Rollback, AsksTheFenceAboutAHostWithoutAddressOnlyAfterTheHostTimeout) {
  roll_back("", "b", kNoAddress);
  EXPECT_FALSE(was_asked("c", host_request::RollbackRun::kName));
  roll_back("", "b", kNoAddress, std::chrono::seconds(0));
  EXPECT_TRUE(was_asked("c", host_request::RollbackRun::kName));
}

TEST_F(HomeJobsTest, RollbackBeginsAtOnceForASilentHostButNotForOneWithoutAddress) {
  const auto begins_after = [&](int error) {
    JobRecord job = home->list(0).at(0);
    job.protection.every_ms = 1000;
    job.protection.agreed = 1;
    job.protection.kept_at = {{"a"}, {"a"}};
    (void)RecordFiles::open(directory)->write(job.id, to_json(job));
    fail("b", error);
    reopen(std::chrono::seconds(300), "/bin/false");
    home->protect();  // the epoch asks b
    home->await_protection();
    home->watch_hosts();
    home->await_protection();
    return !home->list(0).at(0).protection.rolling_back.empty();
  };
  EXPECT_FALSE(begins_after(kNoAddress));
  EXPECT_TRUE(begins_after(ETIMEDOUT));
}

TEST_F(HomeJobsTest, RollbackBeginsAtOnceForANodeWhoseHostReportsItsLoss) {
  JobRecord job = home->list(0).at(0);
  job.protection.every_ms = 1000;
  job.protection.agreed = 1;
  job.protection.kept_at = {{"a"}, {"b"}};
  (void)RecordFiles::open(directory)->write(job.id, to_json(job));
  reopen();
  home->lose(id, 1, "b", "its processes have ended");
  home->await_protection();
  EXPECT_EQ(home->list(0).at(0).protection.rollbacks, 1u);
}

TEST_F(HomeJobsTest, EpochIsNotKeptAtASpareThatDoesNotAnswer) {
  JobRecord job = home->list(0).at(0);
  job.protection.every_ms = 1;
  (void)RecordFiles::open(directory)->write(job.id, to_json(job));
  const auto partner_of_b = [&] {
    home->protect();
    home->await_protection();
    MutexLock lock(mutex);
    return requests[{"b", host_request::EpochBegin::kName}].value("partner", "");
  };
  reopen();
  EXPECT_EQ(partner_of_b(), "c");
  reopen();
  fail("c", ECONNREFUSED);
  EXPECT_FALSE(home->reserve(id, 0, "a", "c"));
  EXPECT_EQ(partner_of_b(), "d");
}

TEST_F(HomeJobsTest, JobWhoseHostsAnswerAgainIsNotRolledBackForADeadSpare) {
  JobRecord job = home->list(0).at(0);
  job.protection.every_ms = 1000;
  job.protection.agreed = 1;
  job.protection.kept_at = {{"a"}, {"c"}};
  job.protection.rolling_back = "host b did not answer";
  job.protection.may_still_answer = true;
  (void)RecordFiles::open(directory)->write(job.id, to_json(job));
  fail("c", ETIMEDOUT);
  reopen();
  home->protect();
  home->await_protection();
  ASSERT_TRUE(home->exists(id));
  EXPECT_EQ(home->list(0).at(0).protection.rolling_back, "");
  EXPECT_EQ(home->list(0).at(0).protection.rollbacks, 0u);
}

TEST_F(HomeJobsTest, JobEndsIfAHostIsSilentForTheHostTimeout) {
  fail("b", ETIMEDOUT);
  reopen(std::chrono::seconds(0));
  home->tend();
  EXPECT_FALSE(home->exists(id));
}

TEST_F(HomeJobsTest, JobDoesNotEndIfTheNameServiceFailsForTheHostTimeout) {
  fail("b", no_address_error("b:7441", EAI_AGAIN).errno_value);
  reopen(std::chrono::seconds(0));
  home->tend();
  EXPECT_TRUE(home->exists(id));
  EXPECT_EQ(states(), "ready ready spare spare ");
}

TEST_F(HomeJobsTest, SpareWhoseAddressIsNotFoundIsPassedOver) {
  fail("c", kNoAddress);
  EXPECT_EQ(home->reserve(id, 0, "a", "").value(), "d");
  EXPECT_EQ(states(), "moving ready inactive moving ");
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
