// A program that testifies whether it was ever doubled. Every few milliseconds it appends one line
// to a log: its count, the state of a chain that the count determines, the node, both clocks, and
// how many words of its memory are not what they were. Two copies that run, whenever and however
// shortly, leave the same count twice.
//
// The log is opened for each line: a file that is open while the program is dumped would have to be
// as long at the restore (CRIU checks that), and a second copy would be refused instead of caught.
//
// Usage: witness DIR      appends to DIR/log; DIR/ready appears when it is under way

#include <memory>

#include "arithmetic.h"
#include "posix.h"

namespace ppmr_programs {
namespace {

constexpr int64_t kLineIntervalNs = 2'000'000;
constexpr size_t kWords = (size_t{2} << 20) / sizeof(uint64_t);
constexpr size_t kWordsPerLine = 1024;  // how much of the memory is looked at for each line
constexpr uint64_t kSeed = 7;

int run(const std::string& directory) {
  const auto memory = std::make_unique<uint64_t[]>(kWords);
  for (size_t i = 0; i < kWords; ++i) memory[i] = memory_word(kSeed, i);
  const std::string log = directory + "/log";
  { LineFile ready(directory + "/ready"); }
  uint64_t count = 0;
  uint64_t state = 0;
  uint64_t wrong_words = 0;
  for (Pace pace(kLineIntervalNs);; pace.wait()) {
    ++count;
    state = chain_step(state);
    for (size_t i = 0; i < kWordsPerLine; ++i) {
      const size_t at = (count * kWordsPerLine + i) % kWords;
      wrong_words += memory[at] != memory_word(kSeed, at);
    }
    char line[256];
    const int length = snprintf(
        line, sizeof line, "%llu %llu %s %lld %lld %llu\n", static_cast<unsigned long long>(count),
        static_cast<unsigned long long>(state), node_name().c_str(),
        static_cast<long long>(realtime_ns()), static_cast<long long>(monotonic_ns()),
        static_cast<unsigned long long>(wrong_words));
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) die("open of the log");
    if (write(fd, line, static_cast<size_t>(length)) != length) die("write of the log");
    close(fd);
  }
}

}  // namespace
}  // namespace ppmr_programs

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: witness DIR\n");
    return 2;
  }
  return ppmr_programs::run(argv[1]);
}
