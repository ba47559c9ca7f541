// Measures how long page faults take after a move. This process has much memory. As soon as it runs
// on another node, it touches each page once, in random order, and records the duration of each
// touch.
//
//     touch_pages MIB BEATS
//
// Writes a line `NANOSECONDS NODE` to BEATS about every millisecond, like the other trees of the
// chapter shapes. On another node it first touches all pages, then writes BEATS.latencies (a 32-bit
// number of nanoseconds for each touch) and BEATS.pass (`SECONDS WRONG_PAGES`), and continues.
//
// The latencies are stored in memory that is mapped after the move. So recording a latency causes
// no fault that the move has to serve.
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include "base/clock.h"
#include "tests/programs/arithmetic.h"
#include "tests/programs/posix.h"

namespace ppmr_programs {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kWordsPerPage = kPageBytes / sizeof(uint64_t);
constexpr int64_t kBeatIntervalNs = 1'000'000;
constexpr uint64_t kSeed = 20261124;

void* map(size_t bytes, int flags) {
  void* at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (at == MAP_FAILED) die("mmap");
  return at;
}

// Returns a permutation of the numbers below 2^bits. Each step can be undone, so two numbers never
// become equal.
uint64_t shuffled(uint64_t number, int bits) {
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for (const uint64_t factor :
       {0xBF58476D1CE4E5B9ull, 0x94D049BB133111EBull, 0xD1342543DE82EF95ull}) {
    number ^= number >> (bits / 2);
    number = number * factor & mask;
  }
  return number ^ (number >> (bits / 2));
}

void write_file(const std::string& path, const void* bytes, size_t size) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || !write_whole(fd, bytes, size) || close(fd) != 0) die(path.c_str());
}

void touch_all(const volatile uint64_t* words, size_t pages, const std::string& beats) {
  const int bits = std::countr_zero(pages);
  auto* latencies = static_cast<uint32_t*>(map(pages * sizeof(uint32_t), MAP_POPULATE));
  size_t wrong = 0;
  const int64_t began = monotonic_ns();
  int64_t before = began;
  for (size_t i = 0; i < pages; ++i) {
    const size_t page = shuffled(i, bits);
    const uint64_t word = words[page * kWordsPerPage];
    const int64_t now = monotonic_ns();
    latencies[i] = static_cast<uint32_t>(
        std::min<int64_t>(now - before, std::numeric_limits<uint32_t>::max()));
    if (word != memory_word(kSeed, page)) ++wrong;
    before = monotonic_ns();
  }
  const double seconds = static_cast<double>(before - began) / 1e9;
  write_file(beats + ".latencies", latencies, pages * sizeof(uint32_t));
  munmap(latencies, pages * sizeof(uint32_t));
  const std::string line = std::to_string(seconds) + " " + std::to_string(wrong) + "\n";
  write_file(beats + ".new", line.data(), line.size());
  if (rename((beats + ".new").c_str(), (beats + ".pass").c_str()) != 0) die("rename");
}

int run(size_t mib, const std::string& beats) {
  const size_t pages = mib * ((1 << 20) / kPageBytes);
  if (!std::has_single_bit(pages)) {
    fprintf(stderr, "touch_pages: MIB must be a power of two\n");
    return 2;
  }
  auto* words = static_cast<uint64_t*>(map(pages * kPageBytes, 0));
  madvise(words, pages * kPageBytes, MADV_NOHUGEPAGE);
  for (size_t page = 0; page < pages; ++page) {
    words[page * kWordsPerPage] = memory_word(kSeed, page);
  }
  LineFile lines(beats);
  const std::string home = node_name();
  bool moved = false;
  while (true) {
    const std::string node = node_name();
    lines.line("%lld %s", static_cast<long long>(realtime_ns()), node.c_str());
    if (!moved && node != home) {
      touch_all(words, pages, beats);
      moved = true;
    }
    sleep_ns(kBeatIntervalNs);
  }
}

}  // namespace
}  // namespace ppmr_programs

int main(int argc, char** argv) {
  if (argc != 3 || atoi(argv[1]) <= 0) {
    fprintf(stderr, "usage: touch_pages MIB BEATS\n");
    return 2;
  }
  return ppmr_programs::run(static_cast<size_t>(atoi(argv[1])), argv[2]);
}
