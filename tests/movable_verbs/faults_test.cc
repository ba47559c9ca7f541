// Moves with random faults at random steps: killed and stopped ends, cut links, cancelled releases,
// machines whose device has no room. In every case the checkers must find no wrong byte and no lost
// or doubled message, and every atomic counts once. An end either continues or gets the error that
// a dead peer would cause. PPMR_SEED replays one world, PPMR_SEEDS sets how many run.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/movable_verbs/ends.h"

namespace ppmr::verbs {
namespace {

using std::chrono::milliseconds;

// The checker's exit codes.
constexpr int kRight = 0, kFailedCompletion = 3;

const std::vector<std::vector<std::string>> kPrograms = {
    {},
    {"--events", "--separate"},
    {"--builder", "--datagrams"},
    {"--shared", "--queue-pairs", "4"},
    {"--shared", "--datagrams", "--extended"},
    {"--threads", "2"},
};

class World {
 public:
  explicit World(uint64_t seed)
      : random_(seed),
        ends_(kPrograms[random_() % kPrograms.size()],
              {{"PPMR_VERBS_DRAIN_LIMIT_MS", "400"}, {"PPMR_VERBS_HOLD_LIMIT_MS", "5000"}}) {}

  void run() {
    for (int i = 0; i < 8 && !is_over_; ++i) step();
    calm_down();
    if (is_over_) {
      expect_errors();
    } else {
      ends_.a->await_rounds(3);
      ends_.b->await_rounds(3);
      ends_.finish();
    }
  }

  std::string story() const { return story_; }
  bool ended_in_errors() const { return is_over_; }

 private:
  End& any() { return random_() % 2 ? *ends_.a : *ends_.b; }
  End& other(const End& end) { return &end == ends_.a.get() ? *ends_.b : *ends_.a; }
  milliseconds some_time(int max_ms) {
    return milliseconds(random_() % static_cast<uint64_t>(max_ms));
  }
  void tell(const std::string& what) { story_ += what + "; "; }

  void step() {
    End& end = any();
    std::thread fault = begin_fault(other(end));
    const std::string released = end.release();
    tell("release " + end.name() + ": " + released);
    const bool is_killed_here = released == "ok" && random_() % 16 == 0;
    if (is_killed_here) {
      tell("kill " + end.name());
      is_over_ = true;
      end.signal(SIGKILL);
    } else if (released == "ok") {
      const bool has_room = random_() % 12 != 0;
      end.put_on(10 + static_cast<int>(random_() % 20), has_room ? -1 : 3);
      if (!has_room) is_over_ = true;
      if (!has_room) tell("no room");
    }
    fault.join();
    if (is_killed_here) return;
    // A process that could not release has nothing to resume, so the test accepts any answer.
    tell("resume " + end.name() + ": " + end.resume());
    if (!is_over_ && random_() % 2) end.await_rounds(1);
  }

  // Starts a random fault of the peer, or of the link, while the other end releases.
  std::thread begin_fault(End& peer) {
    const milliseconds begins = some_time(30);
    switch (random_() % 5) {
      case 0: {
        const milliseconds length = some_time(600);
        tell("stop " + peer.name());
        return std::thread([=, &peer] {
          std::this_thread::sleep_for(begins);
          peer.signal(SIGSTOP);
          std::this_thread::sleep_for(length);
          peer.signal(SIGCONT);
        });
      }
      case 1: {
        // The cut is shorter than the time after which the device reports a silent peer as an
        // error.
        const milliseconds length = some_time(300);
        tell("cut");
        return std::thread([=, this] {
          std::this_thread::sleep_for(begins);
          touch(cut());
          std::this_thread::sleep_for(length);
          unlink(cut().c_str());
        });
      }
      case 2: {
        if (random_() % 4) break;
        tell("kill " + peer.name());
        is_over_ = true;
        return std::thread([=, &peer] {
          std::this_thread::sleep_for(begins);
          peer.signal(SIGKILL);
        });
      }
      default:
        break;
    }
    return std::thread([] {});
  }

  std::string cut() const { return ends_.scratch.fabric() + "/cut"; }

  void calm_down() {
    unlink(cut().c_str());
    for (End* end : {ends_.a.get(), ends_.b.get()}) end->signal(SIGCONT);
  }

  // One end was killed, or its new device has no room. Checks that the other end does not wait for
  // ever.
  void expect_errors() {
    for (End* end : {ends_.a.get(), ends_.b.get()}) {
      const int code = end->wait();
      EXPECT_TRUE(code == -SIGKILL || code == kFailedCompletion || code == kRight)
          << end->name() << ": " << code << "; " << end->output() << end->log();
      EXPECT_EQ(end->output().find("WRONG"), std::string::npos) << end->output();
    }
  }

  std::mt19937_64 random_;
  Ends ends_;
  bool is_over_ = false;
  std::string story_;
};

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(Faults, LeaveEveryByteRightAndEveryAtomicCountedOnce) {
  const uint64_t worlds = std::getenv("PPMR_SEED") ? 1 : number_from("PPMR_SEEDS", 5);
  const uint64_t first = number_from("PPMR_SEED", std::random_device()());
  int in_errors = 0;
  for (uint64_t seed = first; seed < first + worlds; ++seed) {
    World world(seed);
    world.run();
    in_errors += world.ended_in_errors();
    ASSERT_FALSE(HasFailure()) << "PPMR_SEED=" << seed << ": " << world.story();
  }
  RecordProperty("in_errors", in_errors);
}

}  // namespace
}  // namespace ppmr::verbs
