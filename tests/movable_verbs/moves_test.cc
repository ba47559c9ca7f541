// Programs that use verbs move between machines under traffic, and check every byte.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "tests/movable_verbs/ends.h"

namespace ppmr::verbs {
namespace {

constexpr int kFailedCompletion = 3;  // the checker's exit code
constexpr const char* kRetriesExceeded = "status 12";

void move(const End& end, int machine) {
  ASSERT_EQ(end.release(), "ok") << end.log();
  end.put_on(machine);
  ASSERT_EQ(end.resume(), "ok") << end.log();
}

void await_traffic(const Ends& ends) {
  ends.a->await_rounds(5);
  ends.b->await_rounds(5);
}

class Interfaces : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Interfaces, MoveThereAndBackUnderTraffic) {
  Ends ends(GetParam());
  for (const int machine : {3, 1}) {
    move(*ends.a, machine);
    await_traffic(ends);
  }
  move(*ends.b, 4);
  await_traffic(ends);
  ends.finish();
}

INSTANTIATE_TEST_SUITE_P(
    All, Interfaces,
    testing::Values(std::vector<std::string>{}, std::vector<std::string>{"--events"},
                    std::vector<std::string>{"--builder", "--separate"},
                    std::vector<std::string>{"--extended", "--queue-pairs", "7"},
                    std::vector<std::string>{"--events", "--extended", "--builder", "--separate"},
                    std::vector<std::string>{"--shared", "--queue-pairs", "3"},
                    std::vector<std::string>{"--datagrams"},
                    std::vector<std::string>{"--datagrams", "--shared", "--separate"},
                    std::vector<std::string>{"--threads", "3"},
                    std::vector<std::string>{"--threads", "2", "--events"}));

TEST(Moves, NothingOfTheDeviceIsOpenWhileAProcessIsAway) {
  Ends ends;
  const auto threads = [&] {
    const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(ends.a->pid()) +
                                                    "/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto threads_before = threads();
  ASSERT_EQ(ends.a->release(), "ok");
  EXPECT_EQ(threads(), threads_before - 1) << "the thread of the device ends with it";
  for (const auto& file : std::filesystem::directory_iterator(ends.scratch.fabric()))
    EXPECT_EQ(file.path().filename().string().find("127.0.1.1-"), std::string::npos);
  ASSERT_EQ(ends.a->resume(), "ok");
  await_traffic(ends);
  ends.finish();
}

size_t tcp_connections(const End& end) {
  size_t count = 0;
  const std::string process = "/proc/" + std::to_string(end.pid());
  std::set<std::string> sockets;
  for (const auto& fd : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code error;
    sockets.insert(std::filesystem::read_symlink(fd, error).string());
  }
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream lines(process + table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      const bool is_established = state == "01";
      count += is_established && sockets.contains("socket:[" + inode + "]");
    }
  }
  return count;
}

TEST(Moves, NoControlConnectionStaysOpen) {
  Ends ends;
  move(*ends.a, 3);
  await_traffic(ends);
  // CRIU refuses to dump a TCP connection unless an option allows it.
  for (const End* end : {ends.a.get(), ends.b.get()})
    await("the end of control connections", [&] { return tcp_connections(*end) == 0; });
  ends.finish();
}

TEST(Moves, PeersThatMoveAtOnceConnectAgain) {
  Ends ends;
  for (int round = 0; round < 3; ++round) {
    std::string b_said;
    std::thread other([&] { b_said = ends.b->release(); });
    const std::string a_said = ends.a->release();
    other.join();
    ASSERT_EQ(a_said, "ok") << ends.a->log();
    ASSERT_EQ(b_said, "ok") << ends.b->log();
    ends.a->put_on(5 + round);
    ends.b->put_on(8 + round);
    std::thread resume_other([&] { b_said = ends.b->resume(); });
    EXPECT_EQ(ends.a->resume(), "ok");
    resume_other.join();
    EXPECT_EQ(b_said, "ok");
    await_traffic(ends);
  }
  ends.finish();
}

TEST(Moves, PeerOfAnAbsentProcessMovesMeanwhile) {
  Ends ends;
  ASSERT_EQ(ends.a->release(), "ok");
  move(*ends.b, 6);
  ends.a->put_on(7);
  ASSERT_EQ(ends.a->resume(), "ok");
  await_traffic(ends);
  ends.finish();
}

TEST(Moves, NumbersOfNewProgramsDoNotCollideWithMovedOnes) {
  // A checker also fails if it receives a datagram that was meant for another checker.
  const std::vector<std::string> options = {"--datagrams"};
  Ends ends(options);
  move(*ends.a, 2);  // the device of machine 1 may reuse its numbers, but peers know them
  await_traffic(ends);
  const std::string exchange = ends.scratch.path("other");
  std::filesystem::create_directory(exchange);
  End c(ends.scratch, "c", "d", exchange, 1, options, {});
  End d(ends.scratch, "d", "c", exchange, 2, options, {});
  c.await_rounds(5);
  EXPECT_NE(c.log().find("is taken"), std::string::npos) << c.log();
  move(c, 2);
  c.await_rounds(5);
  move(*ends.a, 1);
  await_traffic(ends);
  touch(exchange + "/stop.now");
  EXPECT_EQ(c.wait(), 0) << c.output();
  EXPECT_EQ(d.wait(), 0) << d.output();
  ends.finish();
}

TEST(Moves, ProcessMovesBeforeItIsConnected) {
  Scratch scratch;
  const std::vector<std::string> waits = {"--wait", "--datagrams", "--shared"};
  End a(scratch, "a", "b", scratch.path(""), 1, waits, {});
  End b(scratch, "b", "a", scratch.path(""), 2, waits, {});
  for (const char* name : {"a.address", "b.address"})
    await(name, [&] { return std::filesystem::exists(scratch.path(name)); });
  // b reads the numbers that a had on machine 1. On machine 2 a's device has given it others.
  move(a, 2);
  touch(scratch.path("go.now"));
  a.await_rounds(5);
  b.await_rounds(5);
  move(b, 1);
  a.await_rounds(5);
  touch(scratch.path("stop.now"));
  EXPECT_EQ(a.wait(), 0) << a.output() << a.log();
  EXPECT_EQ(b.wait(), 0) << b.output() << b.log();
}

TEST(Moves, ProcessResumesByItselfWithoutARequest) {
  Ends ends({}, {{"PPMR_VERBS_AWAY_LIMIT_MS", "200"}});
  ASSERT_EQ(ends.a->release(), "ok");
  await_traffic(ends);
  EXPECT_EQ(ends.a->resume(), "ok") << "a late request has nothing to do";
  ends.finish();
}

TEST(Moves, ReleaseNamesASilentPeerAndTrafficGoesOn) {
  Ends ends({}, {{"PPMR_VERBS_DRAIN_LIMIT_MS", "300"}});
  ends.b->stop();
  const std::string said = ends.a->release();
  ends.b->signal(SIGCONT);
  EXPECT_NE(said.find("127.0.1.2"), std::string::npos) << said;
  await_traffic(ends);
  move(*ends.a, 3);
  await_traffic(ends);
  ends.finish();
}

TEST(Moves, ReleaseNamesAPeerWithoutMovableVerbs) {
  Scratch scratch;
  End a(scratch, "a", "b", scratch.path(""), 1, {}, {});
  // b runs without the library, so LeakSanitizer would report the objects that the checker does not
  // destroy.
  End b(scratch, "b", "a", scratch.path(""), 2, {},
        {{"LD_PRELOAD", ""}, {"ASAN_OPTIONS", "detect_leaks=0"}});
  a.await_rounds(5);
  const RdmaCheck check = a.check();
  ASSERT_FALSE(check.hindrances.empty());
  EXPECT_NE(check.hindrances[0].find("no movable verbs"), std::string::npos);
  const std::string said = a.release();
  EXPECT_NE(said.find("no movable verbs"), std::string::npos) << said;
  a.await_rounds(5);
  touch(scratch.path("stop.now"));
  EXPECT_EQ(a.wait(), 0) << a.output();
  EXPECT_EQ(b.wait(), 0) << b.output();
}

TEST(Moves, CheckCountsWhatMustBeMadeAgainAndHoldsNothingBack) {
  Ends ends({"--datagrams", "--shared", "--queue-pairs", "3"});
  const RdmaCheck check = ends.a->check();
  EXPECT_TRUE(check.hindrances.empty()) << check.hindrances.front();
  EXPECT_TRUE(check.shows_writes);
  ASSERT_EQ(check.needs.size(), 1u);
  const RdmaNeeds& needs = check.needs.front();
  EXPECT_EQ(needs.queue_pairs, 4u) << "three connected ones, and one for datagrams";
  EXPECT_GE(needs.shared_queues, 1u);
  EXPECT_GE(needs.completion_queues, 1u);
  EXPECT_GE(needs.domains, 1u);
  EXPECT_GT(needs.regions, 0u);
  EXPECT_GT(needs.requests, 0u);
  EXPECT_GT(needs.completions, 0u);
  EXPECT_GT(needs.mtu_bytes, 0u);
  ASSERT_EQ(needs.gid_kinds.size(), 1u);
  EXPECT_TRUE(needs.gid_kinds.begin()->starts_with("ipv4/")) << *needs.gid_kinds.begin();
  EXPECT_EQ(ends.a->log().find("holds back"), std::string::npos) << ends.a->log();
  EXPECT_EQ(ends.b->log().find("holds back"), std::string::npos) << ends.b->log();
  await_traffic(ends);
  move(*ends.a, 3);
  EXPECT_EQ(ends.a->check().needs.front().queue_pairs, 4u);
  // A device that can make exactly these objects lacks nothing. With one queue pair less, the
  // result names the lack.
  RdmaAbilities device;
  static_cast<RdmaNeeds&>(device) = needs;
  device.is_active = true;
  EXPECT_TRUE(what_rdma_lacks(needs, {device}).empty());
  --device.queue_pairs;
  EXPECT_EQ(what_rdma_lacks(needs, {device}).size(), 1u);
  await_traffic(ends);
  ends.finish();
}

// A release does not know memory that was deregistered, so the library shows it at once.
TEST(Moves, MemoryThatIsDeregisteredAfterACheckIsShownAsWritten) {
  Ends ends({"--forgetful"});
  await_traffic(ends);
  const std::string shown = ends.scratch.path("/a.shown");
  EXPECT_NE(access(shown.c_str(), F_OK), 0) << "without a check, memory is not shown";
  EXPECT_TRUE(ends.a->check().shows_writes);
  await("memory to be shown", [&] { return access(shown.c_str(), F_OK) == 0; });
  move(*ends.a, 3);
  await_traffic(ends);
  ends.finish();
}

TEST(Moves, CheckNamesASilentPeerAndAProcessThatIsAwayStillAnswers) {
  Ends ends({}, {{"PPMR_VERBS_DRAIN_LIMIT_MS", "300"}});
  ends.b->stop();
  const RdmaCheck check = ends.a->check();
  ends.b->signal(SIGCONT);
  ASSERT_EQ(check.hindrances.size(), 1u);
  EXPECT_NE(check.hindrances[0].find("does not answer (127.0.1.2"), std::string::npos)
      << check.hindrances[0];
  await_traffic(ends);
  // A peer that is itself away is no hindrance.
  ASSERT_EQ(ends.b->release(), "ok");
  EXPECT_TRUE(ends.a->check().hindrances.empty());
  EXPECT_TRUE(ends.b->check().hindrances.empty());
  ASSERT_EQ(ends.b->resume(), "ok");
  await_traffic(ends);
  ends.finish();
}

TEST(Moves, SendsToAPeerThatWasKilledMeanwhileFail) {
  Ends ends;
  ASSERT_EQ(ends.a->release(), "ok");
  ends.b->signal(SIGKILL);
  ends.b->wait();
  ASSERT_EQ(ends.a->resume(), "ok");
  EXPECT_EQ(ends.a->wait(), kFailedCompletion) << ends.a->log();
  EXPECT_NE(ends.a->output().find(kRetriesExceeded), std::string::npos) << ends.a->output();
}

TEST(Moves, SendsToAProcessThatNeverReturnsFailAfterTheLimit) {
  Ends ends({}, {{"PPMR_VERBS_HOLD_LIMIT_MS", "300"}});
  ASSERT_EQ(ends.a->release(), "ok");
  EXPECT_EQ(ends.b->wait(), kFailedCompletion);
  EXPECT_NE(ends.b->output().find(kRetriesExceeded), std::string::npos) << ends.b->output();
  // The process resumes after its peer has given up, and its sends fail.
  ASSERT_EQ(ends.a->resume(), "ok");
  EXPECT_EQ(ends.a->wait(), kFailedCompletion) << ends.a->log();
  EXPECT_NE(ends.a->output().find(kRetriesExceeded), std::string::npos) << ends.a->output();
}

TEST(Moves, StopsAndCancelledReleasesLoseNothing) {
  const char* given = std::getenv("PPMR_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("PPMR_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  Ends ends({"--queue-pairs", "3", "--datagrams"}, {{"PPMR_VERBS_DRAIN_LIMIT_MS", "100"}});
  int refused = 0;
  for (int i = 0; i < 10; ++i) {
    const End& mover = random() % 2 ? *ends.a : *ends.b;
    const End& peer = &mover == ends.a.get() ? *ends.b : *ends.a;
    // The peer is stopped for a part of the release, so the release is cancelled at a random step.
    std::thread stops([&, pause = random() % 40, length = 80 + random() % 150] {
      std::this_thread::sleep_for(std::chrono::milliseconds(pause));
      peer.signal(SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(length));
      peer.signal(SIGCONT);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
    refused += mover.release() != "ok";
    stops.join();
    EXPECT_EQ(mover.resume(), "ok") << mover.log();
    await_traffic(ends);
  }
  RecordProperty("refused", refused);
  ends.finish();
}

TEST(Moves, RandomMovesOfBothEndsLoseNothing) {
  const char* given = std::getenv("PPMR_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("PPMR_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  Ends ends({"--queue-pairs", "4", "--shared", "--datagrams"});
  const auto wander = [](const End& end, uint64_t seed_of_end, std::string& said) {
    std::mt19937_64 own(seed_of_end);
    const int base = end.name() == "a" ? 10 : 20;
    for (int i = 0; i < 8; ++i) {
      const std::string released = end.release();
      // On a busy machine an unfinished move of the peer may prevent the release.
      if (released == "ok") end.put_on(base + static_cast<int>(own() % 4));
      if (const std::string resumed = end.resume(); resumed != "ok") said += resumed + "; ";
      std::this_thread::sleep_for(std::chrono::milliseconds(own() % 60));
    }
  };
  std::string a_said, b_said;
  std::thread a(wander, std::cref(*ends.a), random(), std::ref(a_said));
  std::thread b(wander, std::cref(*ends.b), random(), std::ref(b_said));
  a.join();
  b.join();
  EXPECT_EQ(a_said + b_said, "");
  await_traffic(ends);
  ends.finish();
}

}  // namespace
}  // namespace ppmr::verbs
