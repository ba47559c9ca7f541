// Simulates a UD sender and its end. Both move at random, and the network loses, repeats and delays
// requests and replies. A datagram must never leave for a place where the end is not. PPMR_SEED
// replays one simulation; PPMR_SEEDS sets how many run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "verbs_library/protocol/destination.h"

namespace ppmr::verbs {
namespace {

using Phase = Destination::Phase;

enum class Kind { kWatch, kHold };

struct Packet {
  Kind kind = Kind::kWatch;
  bool is_reply = false;
  ReplyKind reply = ReplyKind::kStale;
  uint64_t round = 0;  // in a WATCH: the round of the sender
  uint64_t move = 0;   // in a HOLD: the number of the end's move
  int place = 0;       // in KEYS: the place of the end
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  void run() {
    for (int i = 0; i < 1000 && complaint_.empty(); ++i) step(true);
    const int before = delivered_;
    for (int i = 0; i < 4000 && complaint_.empty() && delivered_ == before; ++i) step(false);
    if (complaint_.empty() && delivered_ == before) complaint_ = "the sender sends no more";
  }

  const std::string& complaint() const { return complaint_; }
  int moves() const { return moves_; }
  int delivered() const { return delivered_; }

 private:
  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }

  void step(bool restless) {
    switch (random_() % 5) {
      case 0:
        return send(restless);
      case 1:
        return complete();
      case 2:
        return deliver(restless);
      case 3:
        return restless || is_away_ || leaves_ ? move_end(restless) : void();
      case 4:
        return restless || sender_is_away_ ? move_sender() : void();
    }
  }

  // Lets the sender send a datagram, or a WATCH if it does not know the address.
  void send(bool restless) {
    if (sender_is_away_) return;
    if (destination_.phase() == Phase::kAsking) {
      if (destination_.look(is_away_ ? Listing::kMoves : Listing::kHere))
        put({.kind = Kind::kWatch, .round = destination_.round()}, restless);
      return;
    }
    if (destination_.phase() != Phase::kKnown) {
      complaint_ = "the end is given up";
      return;
    }
    ++in_flight_;
  }

  void complete() {
    if (in_flight_ == 0) return;
    --in_flight_;
    if (is_away_ || known_place_ != place_) {
      complaint_ = "a datagram went to a place where the end is not";
      return;
    }
    ++delivered_;
  }

  void put(const Packet& packet, bool restless) {
    // Bounds the questions under way: an end repeats a question only when the earlier one was lost.
    constexpr size_t kUnderWayMax = 4;
    if (packets_.size() >= kUnderWayMax && !packet.is_reply) return;
    for (int copies = restless && chance(10) ? 2 : 1; copies > 0; --copies)
      packets_.push_back(packet);
  }

  void deliver(bool restless) {
    if (packets_.empty()) return;
    const size_t which = random_() % packets_.size();
    const Packet packet = packets_[which];
    packets_.erase(packets_.begin() + static_cast<long>(which));
    if (restless && chance(20)) return;
    const bool is_for_sender = (packet.kind == Kind::kHold) != packet.is_reply;
    if (is_for_sender ? sender_is_away_ : is_away_) return;
    if (packet.kind == Kind::kWatch && !packet.is_reply) {
      Packet reply = packet;
      reply.is_reply = true;
      reply.reply = leaves_ ? ReplyKind::kNotYet : ReplyKind::kKeys;
      reply.place = place_;
      if (!leaves_) is_watched_ = true;
      put(reply, restless);
    } else if (packet.kind == Kind::kWatch) {
      const bool was_known = destination_.phase() == Phase::kKnown;
      destination_.answered(packet.round, packet.reply);
      if (!was_known && destination_.phase() == Phase::kKnown) known_place_ = packet.place;
    } else if (!packet.is_reply) {
      Packet reply = packet;
      reply.is_reply = true;
      reply.reply = destination_.hold(in_flight_ == 0);
      put(reply, restless);
    } else if (leaves_ && packet.move == moves_begun_ && packet.reply == ReplyKind::kOk) {
      sender_holds_ = true;
    }
  }

  void move_end(bool restless) {
    if (is_away_) {
      if (restless && chance(70)) return;
      is_away_ = false;
      ++place_;
    } else if (!leaves_) {
      if (!chance(20)) return;
      leaves_ = true;
      sender_holds_ = false;
      ++moves_begun_;
    } else if (chance(restless ? 10 : 50)) {
      leaves_ = false;  // the move is cancelled; the sender stays noted
    } else if (is_watched_ && !sender_holds_ && !sender_is_away_) {
      put({.kind = Kind::kHold, .move = moves_begun_}, restless);
    } else {
      leaves_ = is_watched_ = false;
      is_away_ = true;
      ++moves_;
    }
  }

  void move_sender() {
    if (sender_is_away_) {
      sender_is_away_ = false;
      destination_.ask_again();
    } else if (in_flight_ == 0 && chance(20)) {
      sender_is_away_ = true;
    }
  }

  std::mt19937_64 random_;
  Destination destination_;
  int known_place_ = 0;
  int in_flight_ = 0;
  bool sender_is_away_ = false;
  int place_ = 0;
  bool leaves_ = false, is_away_ = false, is_watched_ = false, sender_holds_ = false;
  uint64_t moves_begun_ = 0;
  std::vector<Packet> packets_;
  std::string complaint_;
  int moves_ = 0, delivered_ = 0;
};

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST(DestinationSimulation, NoDatagramGoesToAPlaceThatItsEndHasLeft) {
  const uint64_t worlds = std::getenv("PPMR_SEED") ? 1 : 10 * number_from("PPMR_SEEDS", 300);
  const uint64_t first = number_from("PPMR_SEED", std::random_device()());
  int moves = 0, delivered = 0;
  for (uint64_t seed = first; seed < first + worlds; ++seed) {
    World world(seed);
    world.run();
    ASSERT_EQ(world.complaint(), "") << "PPMR_SEED=" << seed;
    moves += world.moves();
    delivered += world.delivered();
  }
  EXPECT_GT(moves, 0);
  EXPECT_GT(delivered, 0);
}

}  // namespace
}  // namespace ppmr::verbs
