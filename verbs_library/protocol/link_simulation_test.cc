// Simulates two ends that move, cancel moves and send at random. The network loses, repeats and
// delays requests and replies. PPMR_SEED replays one simulation; PPMR_SEEDS sets how many run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <sstream>
#include <vector>

#include "verbs_library/protocol/link.h"

namespace ppmr::verbs {
namespace {

using Phase = Link::Phase;

// One end. Its queue pair is a number, which grows each time that the end makes it again; 0: none.
struct End {
  Link link;
  uint64_t queue_pair = 1;
  uint64_t connected_to = 1;
  uint64_t queue_pairs_made = 1;
  uint64_t sent = 0;
  uint64_t in_flight = 0;  // sends that have not completed
  uint64_t in_queue = 0;   // messages that have arrived, and whose completions were not polled
  uint64_t received = 0;

  Traffic traffic() const { return {in_flight == 0, sent, received}; }
  void make_queue_pair() { queue_pair = ++queue_pairs_made; }
};

struct Packet {
  bool is_reply = false;
  int to = 0;
  LinkRequest request;
  LinkReply reply;
  uint64_t queue_pair = 0;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  void run() {
    for (int i = 0; i < 600 && !failed(); ++i) step(true);
    for (int i = 0; i < 4000 && !failed() && !is_calm(); ++i) step(false);
    if (!failed() && !is_calm()) complain("the ends do not open again");
    if (!failed()) check_everything_arrived();
  }

  std::string complaint() const { return complaint_; }
  int moves() const { return moves_; }

 private:
  bool failed() const { return !complaint_.empty(); }
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  End& peer_of(int end) { return ends_[1 - end]; }

  void complain(const std::string& what) {
    std::ostringstream text;
    text << what << "; phases " << static_cast<int>(ends_[0].link.phase()) << " and "
         << static_cast<int>(ends_[1].link.phase());
    complaint_ = text.str();
  }

  bool are_connected() const {
    return ends_[0].queue_pair && ends_[1].queue_pair &&
           ends_[0].connected_to == ends_[1].queue_pair &&
           ends_[1].connected_to == ends_[0].queue_pair;
  }

  bool is_calm() const {
    for (const End& end : ends_) {
      if (end.link.phase() != Phase::kOpen || end.link.is_gated() || end.in_flight || end.in_queue)
        return false;
    }
    return true;
  }

  void check_everything_arrived() {
    if (!are_connected()) complain("open, but not connected");
    for (int i = 0; i < 2; ++i) {
      if (ends_[i].sent != peer_of(i).received) complain("messages are lost");
    }
  }

  void step(bool restless) {
    const int at = static_cast<int>(random_() % 2);
    switch (random_() % 6) {
      case 0:
        return traffic(at, restless);
      case 1:
        return ask(at, restless);
      case 2:
        return deliver(restless);
      case 3:
        return move(at, restless);
      case 4:
        return complete(at);
      case 5:
        return poll(at);
    }
  }

  void traffic(int at, bool restless) {
    End& end = ends_[at];
    if (!restless || end.link.is_gated()) return;
    if (!are_connected()) return complain("an end sends without a connection");
    ++end.sent;
    ++end.in_flight;
  }

  void complete(int at) {
    End& end = ends_[at];
    if (!end.in_flight) return;
    if (!are_connected()) return complain("a message was in flight when a connection ended");
    --end.in_flight;
    ++peer_of(at).in_queue;
  }

  void poll(int at) {
    End& end = ends_[at];
    if (!end.in_queue) return;
    --end.in_queue;
    ++end.received;
  }

  void ask(int at, bool restless) {
    End& end = ends_[at];
    const auto request = end.link.next_request(end.traffic());
    if (!request || (restless && chance(20))) return;
    const int copies = restless && chance(10) ? 2 : 1;
    for (int i = 0; i < copies; ++i)
      packets_.push_back({.is_reply = false,
                          .to = 1 - at,
                          .request = *request,
                          .reply = {},
                          .queue_pair = end.queue_pair});
  }

  void deliver(bool restless) {
    if (packets_.empty()) return;
    const size_t which = random_() % packets_.size();
    const Packet packet = packets_[which];
    packets_.erase(packets_.begin() + static_cast<long>(which));
    End& end = ends_[packet.to];
    if (end.queue_pair == 0 || (restless && chance(20))) return;  // away, or lost
    if (packet.is_reply) {
      if (end.link.answered(packet.request, packet.reply)) end.connected_to = packet.queue_pair;
      return;
    }
    const auto handled = end.link.handle(packet.request, end.traffic());
    if (handled.action == LinkAction::kReconnect) {
      // Completions in the completion queue survive the queue pair.
      end.received += end.in_queue;
      end.in_queue = 0;
      if (end.in_flight) complain("a queue pair in use was replaced");
      end.make_queue_pair();
      end.connected_to = packet.queue_pair;
    }
    packets_.push_back({.is_reply = true,
                        .to = 1 - packet.to,
                        .request = packet.request,
                        .reply = handled.reply,
                        .queue_pair = end.queue_pair});
  }

  void move(int at, bool restless) {
    End& end = ends_[at];
    Link& link = end.link;
    if (link.phase() == Phase::kAway) {
      if (restless && chance(70)) return;
      end.make_queue_pair();
      end.connected_to = 0;
      return link.returned();
    }
    if (link.phase() == Phase::kLeaving || link.phase() == Phase::kReady) {
      link.observe(end.traffic());
      if (chance(restless ? 10 : 30)) return link.stay();
      if (!link.may_be_destroyed() || chance(50)) return;
      if (end.in_flight || end.in_queue || peer_of(at).in_flight)
        return complain("a queue pair in use was destroyed");
      end.queue_pair = 0;
      ++moves_;
      return link.left();
    }
    if (restless && chance(30)) link.leave();
  }

  std::mt19937_64 random_;
  EndId low_{.qpn = 1}, high_{.qpn = 2};
  End ends_[2] = {{.link = Link(low_, high_)}, {.link = Link(high_, low_)}};
  std::vector<Packet> packets_;
  std::string complaint_;
  int moves_ = 0;
};

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(LinkSimulation, EndsMoveAtRandomAndLoseNothing) {
  const uint64_t worlds = std::getenv("PPMR_SEED") ? 1 : 10 * number_from("PPMR_SEEDS", 300);
  const uint64_t first = number_from("PPMR_SEED", std::random_device()());
  int moves = 0;
  for (uint64_t seed = first; seed < first + worlds; ++seed) {
    World world(seed);
    world.run();
    ASSERT_EQ(world.complaint(), "") << "PPMR_SEED=" << seed;
    moves += world.moves();
  }
  EXPECT_GT(moves, 0);
  RecordProperty("moves", moves);
}

}  // namespace
}  // namespace ppmr::verbs
