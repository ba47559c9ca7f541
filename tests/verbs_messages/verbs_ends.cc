// One end of an exchange of messages over verbs, which checks each byte that it receives.
//
//     verbs_ends --name x --partner y --directory D --message-bytes 16384 --rate 50
//
// It sends messages to its partner and receives those of its partner. Length and content of a
// message follow from its sender and its number, so the receiver computes them, too. A message that
// is lost, doubled, out of order or changed ends the program at once, with a line that says so.
//
// A few times a second it writes a line to D/NAME.out. After SIGTERM it sends a last message, waits
// until everything has arrived at both ends, writes a line that begins with `final`, and exits.
#include <getopt.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tests/programs/arithmetic.h"
#include "tests/programs/posix.h"
#include "tests/verbs_messages/messenger.h"

namespace verbs_messages {
namespace {

using namespace std::chrono_literals;
using ppmr_programs::LineFile;
using ppmr_programs::monotonic_ns;
using std::chrono::milliseconds;

constexpr int64_t kLineEvery_ns = 150'000'000;
constexpr int64_t kEndMax_ns = 120'000'000'000;
constexpr uint64_t kLast = 1;  // a flag in a message: the sender sends no further message

volatile sig_atomic_t stopping = 0;

struct Options {
  std::string name, partner, directory;
  size_t message_bytes_max = 16 << 10;
  int64_t rate = 50;  // messages per second; 0: as many as possible
};

// The messages of one sender.
class Stream {
 public:
  Stream(const std::string& sender, size_t message_bytes_max) : words_max_(message_bytes_max / 8) {
    for (const char letter : sender) seed_ = ppmr_programs::mix(seed_ ^ uint64_t(letter));
  }
  // The words of a message: its number, its flags, and a random number of random words.
  const std::vector<uint64_t>& message(uint64_t number, uint64_t flags) {
    const uint64_t draw = ppmr_programs::mix(seed_ ^ number);
    words_.resize(2 + draw % (words_max_ - 1));
    words_[0] = number;
    words_[1] = flags;
    for (size_t i = 2; i < words_.size(); ++i) words_[i] = ppmr_programs::memory_word(draw, i);
    return words_;
  }

 private:
  const size_t words_max_;
  uint64_t seed_ = 0;
  std::vector<uint64_t> words_;
};

// A moment that repeats periodically. After a pause it does not make up for missed moments, and it
// continues even if a move sets the clock back.
class Beat {
 public:
  explicit Beat(int64_t every_ns) : every_ns_(every_ns), next_ns_(monotonic_ns()) {}
  int64_t wait_ns() const {
    const int64_t left = next_ns_ - monotonic_ns();
    return left > every_ns_ ? 0 : std::max<int64_t>(left, 0);
  }
  bool is_due() const { return wait_ns() == 0; }
  void next() {
    const int64_t now = monotonic_ns();
    const bool in_step = now >= next_ns_ && now - next_ns_ < every_ns_;
    next_ns_ = (in_step ? next_ns_ : now) + every_ns_;
  }

 private:
  const int64_t every_ns_;
  int64_t next_ns_;
};

class End {
 public:
  explicit End(const Options& options)
      : options_(options),
        ours_(options.name, options.message_bytes_max),
        theirs_(options.partner, options.message_bytes_max),
        out_(options.directory + "/" + options.name + ".out"),
        messenger_(options.name, options.directory,
                   [this](const std::string& from, auto message) { check(from, message); }) {}

  int run() {
    Beat lines(kLineEvery_ns);
    Beat sends(options_.rate > 0 ? 1'000'000'000 / options_.rate : 0);
    int64_t end_by_ns = 0;
    while (!is_finished()) {
      if (stopping && end_by_ns == 0) end_by_ns = monotonic_ns() + kEndMax_ns;
      if (end_by_ns != 0 && monotonic_ns() > end_by_ns) return finish(1);
      if (!has_ended_ && (stopping || sends.is_due())) send_some(sends);
      const int state = state_now();
      const int64_t wait_ns =
          has_ended_ ? lines.wait_ns() : std::min(lines.wait_ns(), sends.wait_ns());
      messenger_.progress(milliseconds(has_room_ ? wait_ns / 1'000'000 : 10));
      if (lines.is_due() || state != state_now()) {
        report("");
        lines.next();
      }
    }
    messenger_.leave();
    return finish(0);
  }

 private:
  bool is_finished() {
    return has_ended_ && partner_has_ended_ && messenger_.acknowledged(options_.partner) == sent_;
  }

  int state_now() const {
    return (messenger_.is_releasing() ? 1 : 0) + (messenger_.is_away() ? 2 : 0);
  }

  int finish(int code) {
    report("final ");
    return code;
  }

  void send_some(Beat& sends) {
    do {
      const auto& words = ours_.message(sent_ + 1, stopping ? kLast : 0);
      has_room_ = messenger_.send(options_.partner, std::as_bytes(std::span(words)));
      if (!has_room_) return;
      ++sent_;
      sends.next();
      has_ended_ = words[1] == kLast;
    } while (!has_ended_ && options_.rate == 0);
  }

  void check(const std::string& from, std::span<const std::byte> message) {
    uint64_t head[2] = {};
    if (from != options_.partner) wrong("a message from " + from);
    if (message.size() >= sizeof head) std::memcpy(head, message.data(), sizeof head);
    const uint64_t number = head[0];
    const auto expected = std::as_bytes(std::span(theirs_.message(number, head[1])));
    if (number <= received_) ++twice_;
    if (number > received_ + 1) missing_ += number - received_ - 1;
    if (!std::ranges::equal(message, expected)) ++wrong_;
    if (twice_ + missing_ + wrong_ > 0) {
      wrong("message " + std::to_string(number) + " after " + std::to_string(received_));
    }
    received_ = number;
    bytes_ += message.size();
    partner_has_ended_ = head[1] == kLast;
  }

  [[noreturn]] void wrong(const std::string& what) {
    fprintf(stderr, "WRONG: %s\n", what.c_str());
    report("");
    _exit(1);
  }

  void report(const char* prefix) {
    const auto& counters = messenger_.counters();
    out_.line(
        "%snode=%s sent=%lu acknowledged=%lu received=%lu bytes=%lu wrong=%lu twice=%lu "
        "missing=%lu connections=%lu broken=%lu sent_again=%lu discarded=%lu releases=%lu "
        "resumes=%lu releasing=%d away=%d",
        prefix, ppmr_programs::node_name().c_str(), sent_,
        messenger_.acknowledged(options_.partner), received_, bytes_, wrong_, twice_, missing_,
        counters.connections, counters.broken, counters.sent_again, counters.discarded,
        counters.releases, counters.resumes, messenger_.is_releasing() ? 1 : 0,
        messenger_.is_away() ? 1 : 0);
  }

  const Options options_;
  Stream ours_, theirs_;
  LineFile out_;
  Messenger messenger_;
  uint64_t sent_ = 0, received_ = 0, bytes_ = 0;
  uint64_t wrong_ = 0, twice_ = 0, missing_ = 0;
  bool has_room_ = true, has_ended_ = false, partner_has_ended_ = false;
};

Options parse(int argc, char** argv) {
  static constexpr option kOptions[] = {
      {"name", required_argument, nullptr, 'n'},
      {"partner", required_argument, nullptr, 'p'},
      {"directory", required_argument, nullptr, 'd'},
      {"message-bytes", required_argument, nullptr, 'b'},
      {"rate", required_argument, nullptr, 'r'},
      {},
  };
  Options options;
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    switch (letter) {
      case 'n':
        options.name = optarg;
        break;
      case 'p':
        options.partner = optarg;
        break;
      case 'd':
        options.directory = optarg;
        break;
      case 'b':
        options.message_bytes_max = std::strtoul(optarg, nullptr, 10);
        break;
      case 'r':
        options.rate = std::strtol(optarg, nullptr, 10);
        break;
      default:
        std::exit(2);
    }
  }
  const bool fits =
      options.message_bytes_max >= 16 && options.message_bytes_max <= kMessageBytesMax;
  if (options.name.empty() || options.partner.empty() || options.directory.empty() || !fits) {
    fprintf(stderr,
            "usage: verbs_ends --name X --partner Y --directory D "
            "[--message-bytes 16..%zu] [--rate MESSAGES_PER_SECOND]\n",
            kMessageBytesMax);
    std::exit(2);
  }
  return options;
}

}  // namespace
}  // namespace verbs_messages

int main(int argc, char** argv) {
  std::signal(SIGTERM, [](int) { verbs_messages::stopping = 1; });
  try {
    return verbs_messages::End(verbs_messages::parse(argc, argv)).run();
  } catch (const std::exception& failure) {
    fprintf(stderr, "WRONG: %s\n", failure.what());
    return 1;
  }
}
