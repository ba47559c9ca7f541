// The two ends of a resumable command, without connections: a simulation cuts connections, rolls
// the job node back to copies of itself, and replaces the client.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>

#include "jobs/command/stream_resumption.h"

namespace ppmr {
namespace {

using Random = std::mt19937_64;

constexpr int kSeeds = 10'000;
constexpr size_t kStepsMax = 200'000;
constexpr size_t kLongBytes = 1000;

size_t below(Random& random, size_t limit) { return limit == 0 ? 0 : random() % limit; }
bool chance(Random& random, size_t one_in) { return below(random, one_in) == 0; }

std::string random_bytes(Random& random) {
  // Some streams are longer than the window.
  const size_t size = below(random, chance(random, 200) ? 3 * kStreamWindowBytes : kLongBytes);
  std::string bytes;
  while (bytes.size() < size) {
    const uint64_t word = random();
    bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  bytes.resize(size);
  return bytes;
}

// All that the command must read and write in spite of the disturbances.
struct Plan {
  std::string input, output, errors;
  CommandEnd end;
};

// A command that writes its output in step with its input. It is a value, so that a copy of the job
// node contains a copy of the command.
struct Command {
  size_t read = 0, output = 0, errors = 0;
  bool ended = false;
  std::string signals{};
};

struct JobNode {
  ServerResumption streams;
  Command command{};
  std::string pipe{};  // input that the command has not read
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    plan_ = {.input = random_bytes(random_),
             .output = random_bytes(random_),
             .errors = random_bytes(random_),
             .end = {.exit_code = static_cast<int>(below(random_, 256))}};
    const size_t longest = std::max({plan_.input.size(), plan_.output.size(), plan_.errors.size()});
    step_bytes_ = longest > kLongBytes ? kStreamPieceMaxBytes : 20 + below(random_, 300);
    epoch_ = node_;
  }

  void run() {
    for (size_t step = 0; !client_.end() && !HasFailure(); ++step) {
      ASSERT_LT(step, kStepsMax) << "the job does not end";
      take_step();
    }
    if (HasFailure()) return;
    EXPECT_EQ(client_.end()->exit_code, plan_.end.exit_code);
    EXPECT_TRUE(output_ == plan_.output) << output_.size() << " of " << plan_.output.size();
    EXPECT_TRUE(errors_ == plan_.errors) << errors_.size() << " of " << plan_.errors.size();
  }

 private:
  static bool HasFailure() { return testing::Test::HasFailure(); }

  void take_step() {
    switch (below(random_, 9)) {
      case 0:
        return run_command();
      case 1:
        return give_input();
      case 2:
        return node_sends();
      case 3:
        return client_sends();
      case 4:
      case 5:
        return client_receives();
      case 6:
        return node_receives();
      case 7:
        if (!is_connected_) return connect();
        // The agent tells the client about the rollback.
        if (is_stale_ && chance(random_, 5)) cut();
        return;
      default:
        if (chance(random_, 5)) disturb();
    }
  }

  void disturb() {
    if (chance(random_, 3)) {
      epoch_ = node_;
      return;
    }
    if (disturbances_left_ == 0) return;
    --disturbances_left_;
    if (is_attached_ && !is_stale_ && chance(random_, 3)) return go_on_with_another_client();
    if (chance(random_, 2)) return cut();
    node_ = epoch_;
    to_node_.clear();
    is_stale_ = is_connected_;
  }

  // Suspends the job node and lets it go on with a new client. No earlier copy of the job node
  // remains.
  void go_on_with_another_client() {
    const auto state = parse_client_state(to_text(client_.state()));
    ASSERT_TRUE(state) << state.error().message;
    client_ = ClientResumption(*state);
    epoch_ = node_;
    cut();
  }

  void cut() {
    is_connected_ = is_attached_ = is_stale_ = false;
    to_node_.clear();
    to_client_.clear();
  }

  void connect() {
    is_connected_ = true;
    const auto positions = node_.streams.attach(client_.positions());
    ASSERT_TRUE(positions) << positions.error().message;
    to_client_.push_back({.type = FrameType::kAttached, .payload = to_text(*positions)});
  }

  size_t some(size_t most) { return std::min(most, 1 + below(random_, step_bytes_)); }

  void write(FrameType stream, const std::string& all, size_t& written) {
    if (!node_.streams.has_room(stream)) return;
    const size_t count = some(all.size() - written);
    node_.streams.put(stream, std::string_view(all).substr(written, count));
    written += count;
  }

  void run_command() {
    Command& command = node_.command;
    if (command.ended) return;
    const size_t count = some(node_.pipe.size());
    ASSERT_TRUE(plan_.input.compare(command.read, count, node_.pipe, 0, count) == 0);
    command.read += count;
    node_.pipe.erase(0, count);
    if (node_.pipe.empty()) node_.streams.pass_on_input();
    write(FrameType::kOutput, plan_.output, command.output);
    write(FrameType::kErrors, plan_.errors, command.errors);
    if (!node_.streams.input_ended() || !node_.pipe.empty()) return;
    ASSERT_EQ(command.read, plan_.input.size());
    if (command.output < plan_.output.size() || command.errors < plan_.errors.size()) return;
    command.ended = true;
    node_.streams.end(plan_.end);
  }

  void give_input() {
    if (chance(random_, 20)) {
      signals_ += static_cast<char>(1 + below(random_, 30));
      client_.put_signal(signals_.back());
    }
    if (!client_.wants_input()) return;
    if (given_ == plan_.input.size()) return client_.end_input();
    const size_t count = some(plan_.input.size() - given_);
    client_.put_input(std::string_view(plan_.input).substr(given_, count));
    given_ += count;
  }

  void node_sends() {
    const auto frame = node_.streams.take_next();
    if (frame && is_connected_) to_client_.push_back(*frame);
  }

  void client_sends() {
    if (!is_attached_) return;
    const auto frame = client_.take_next();
    // A job node that was rolled back lacks a part of the old connection. So it receives nothing
    // more on that connection.
    if (frame && !is_stale_) to_node_.push_back(*frame);
  }

  void node_receives() {
    if (to_node_.empty()) return;
    const Frame frame = to_node_.front();
    to_node_.pop_front();
    if (const Status taken = node_.streams.take(frame); !taken) return cut();
    if (frame.type == FrameType::kInput) node_.pipe += frame.payload;
    if (frame.type == FrameType::kSignals) node_.command.signals += frame.payload;
    ASSERT_TRUE(signals_.starts_with(node_.command.signals));
  }

  void client_receives() {
    if (to_client_.empty()) return;
    const Frame frame = to_client_.front();
    to_client_.pop_front();
    if (frame.type == FrameType::kAttached) {
      const auto positions = parse_input_positions(frame.payload);
      ASSERT_TRUE(positions) << positions.error().message;
      const Status attached = client_.attached(*positions);
      ASSERT_TRUE(attached) << attached.error().message;
      is_attached_ = true;
      return;
    }
    if (!is_attached_) return;
    if (const Status taken = client_.take(frame); !taken) return cut();
    if (frame.type == FrameType::kOutput) output_ += frame.payload;
    if (frame.type == FrameType::kErrors) errors_ += frame.payload;
    client_.pass_on();
  }

  Random random_;
  Plan plan_;
  JobNode node_, epoch_;
  ClientResumption client_;
  std::string output_{}, errors_{};  // all that the client has printed
  std::string signals_{};            // all that the client's user has sent
  size_t given_ = 0;
  size_t step_bytes_ = 1;
  std::deque<Frame> to_node_{}, to_client_{};
  bool is_connected_ = false, is_attached_ = false;
  // The job node was rolled back. What it sends now may reach the client as the continuation of the
  // old connection.
  bool is_stale_ = false;
  int disturbances_left_ = 30;
};

TEST(Resumption, CutsRollbacksAndSuspensionsChangeNeitherOutputNorInput) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World(seed).run();
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

Status give_and_take(ClientResumption& client, ServerResumption& node) {
  while (const auto frame = client.take_next()) {
    if (Status taken = node.take(*frame); !taken) return taken;
  }
  node.pass_on_input();
  while (const auto frame = node.take_next()) {
    if (Status taken = client.take(*frame); !taken) return taken;
  }
  client.pass_on();
  return {};
}

TEST(Resumption, StateOfAClientIsChecked) {
  EXPECT_FALSE(parse_client_state("[]"));
  EXPECT_FALSE(parse_client_state("{}"));
  const std::string text = to_text(ClientState{.input = "ab"});
  EXPECT_EQ(parse_client_state(text)->input, "ab");
  const size_t input = text.find("6162");
  ASSERT_NE(input, std::string::npos);
  EXPECT_FALSE(parse_client_state(std::string(text).replace(input, 4, "61x2")));
  EXPECT_FALSE(parse_client_state(std::string(text).replace(input, 4, "616")));
}

TEST(Resumption, JobNodeKeepsNoMoreThanTheWindowForAClientThatIsAway) {
  ServerResumption node;
  size_t kept = 0;
  for (; node.has_room(FrameType::kOutput); kept += 1000) {
    node.put(FrameType::kOutput, std::string(1000, 'x'));
  }
  EXPECT_LT(kept, kStreamWindowBytes + 1000);
  EXPECT_TRUE(node.has_room(FrameType::kErrors));
  ClientResumption client;
  ASSERT_TRUE(client.attached(*node.attach(client.positions())));
  ASSERT_TRUE(give_and_take(client, node));
  ASSERT_TRUE(give_and_take(client, node));
  EXPECT_TRUE(node.has_room(FrameType::kOutput));
}

TEST(Resumption, ClientReadsNoMoreInputThanTheCommandTakes) {
  ClientResumption client;
  ServerResumption node;
  size_t sent = 0;
  for (; client.wants_input(); sent += 1000) client.put_input(std::string(1000, 'x'));
  while (const auto frame = client.take_next()) ASSERT_TRUE(node.take(*frame));
  EXPECT_EQ(node.attach({})->input, kStreamWindowBytes);
  EXPECT_FALSE(client.wants_input());
  // The window is full. A new connection does not empty it.
  ASSERT_TRUE(client.attached(*node.attach(client.positions())));
  EXPECT_FALSE(client.take_next());
  EXPECT_FALSE(node.take({FrameType::kInput, kStreamWindowBytes, "x"}));
}

TEST(Resumption, RollbackBeyondTheKeptInputIsAnError) {
  constexpr size_t kKept = 100'000;
  for (const bool beyond : {false, true}) {
    ClientResumption client(kKept);
    ServerResumption node;
    const ServerResumption epoch = node;
    const size_t size = beyond ? 10 * kKept : kKept;
    for (size_t given = 0; given < size; given += 1000) {
      client.put_input(std::string(1000, 'x'));
      ASSERT_TRUE(give_and_take(client, node));
    }
    ServerResumption restored = epoch;
    const Status attached = client.attached(*restored.attach(client.positions()));
    EXPECT_EQ(attached.has_value(), !beyond);
    if (attached) continue;
    EXPECT_EQ(attached.error().errno_value, ENOBUFS);
    EXPECT_NE(attached.error().message.find(
                  "after the job node was rolled back: the sender no longer keeps"),
              std::string::npos);
  }
}

TEST(Resumption, CommandThatWritesLessAfterARollbackEnds) {
  ClientResumption client;
  ServerResumption node;
  const ServerResumption epoch = node;
  node.put(FrameType::kOutput, "many bytes");
  ASSERT_TRUE(give_and_take(client, node));
  ServerResumption restored = epoch;
  ASSERT_TRUE(client.attached(*restored.attach(client.positions())));
  restored.put(FrameType::kOutput, "few");
  restored.end({.exit_code = 3});
  ASSERT_TRUE(give_and_take(client, restored));
  ASSERT_TRUE(client.end());
  EXPECT_EQ(client.end()->exit_code, 3);
}

TEST(Resumption, LostEndOfACommandIsSentAgain) {
  ClientResumption client;
  ServerResumption node;
  node.put(FrameType::kErrors, "last words");
  node.end({.signal = 9});
  while (node.take_next()) {
  }
  EXPECT_FALSE(node.is_done());
  ASSERT_TRUE(client.attached(*node.attach(client.positions())));
  ASSERT_TRUE(give_and_take(client, node));
  EXPECT_EQ(client.end()->signal, 9);
  ASSERT_TRUE(give_and_take(client, node));
  EXPECT_TRUE(node.is_done());
}

TEST(Resumption, FramesThatDoNotContinueTheirStreamAreErrors) {
  ClientResumption client;
  EXPECT_FALSE(client.take({FrameType::kOutput, 1, "x"}));
  EXPECT_FALSE(client.take({FrameType::kEnd, 1, to_text(CommandEnd{})}));
  EXPECT_FALSE(client.take({FrameType::kConfirm, 1, std::string(1, char(FrameType::kInput))}));
  EXPECT_FALSE(client.take({FrameType::kInput, 0, "x"}));
  ServerResumption node;
  EXPECT_FALSE(node.take({FrameType::kInput, 1, "x"}));
  EXPECT_FALSE(node.take({FrameType::kInputEnd, 1}));
  EXPECT_FALSE(node.take({FrameType::kSignals, 1, "x"}));
  EXPECT_FALSE(node.take({FrameType::kConfirm, 1, std::string(1, char(FrameType::kOutput))}));
  EXPECT_FALSE(node.take({FrameType::kConfirm, 0, ""}));
  EXPECT_FALSE(node.take({FrameType::kEndTaken}));
  EXPECT_FALSE(node.take({FrameType::kOutput, 0, "x"}));
}

TEST(Resumption, ImpossiblePositionsAreErrors) {
  ClientResumption client;
  EXPECT_FALSE(client.attached({.input = 1}));
  EXPECT_FALSE(client.attached({.input_passed_on = 1}));
  EXPECT_FALSE(client.attached({.signals = 1}));
  ServerResumption node;
  node.put(FrameType::kOutput, std::string(kStreamWindowBytes, 'x'));
  ASSERT_TRUE(client.attached(*node.attach(client.positions())));
  ASSERT_TRUE(give_and_take(client, node));
  ASSERT_TRUE(give_and_take(client, node));
  EXPECT_FALSE(node.attach({.output = 0}));  // the client had more
}

}  // namespace
}  // namespace ppmr
