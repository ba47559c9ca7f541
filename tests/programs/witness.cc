// A program whose log shows whether two copies of it have ever run. Every few milliseconds it
// appends one line: its count, the state of a chain that depends only on the count, the node, both
// clocks, and the number of changed words in its memory. Two copies that run, even at different
// times, log the same count twice.
//
// The log is opened for each line. CRIU checks that a file which was open during the dump has the
// same length at the restore, so it would refuse a second copy instead of revealing it.
//
// Usage: witness DIR      appends to DIR/log; creates DIR/ready when it runs

#include <memory>

#include "arithmetic.h"
#include "posix.h"

namespace ppmr_programs {
namespace {

constexpr int64_t kLineIntervalNs = 2'000'000;
constexpr size_t kWords = (size_t{2} << 20) / sizeof(uint64_t);
constexpr size_t kWordsPerLine = 1024;  // number of words that are checked for each line
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
