// A program whose mappings change all the time: it writes pages, unmaps, maps and moves memory,
// gives pages back to the kernel, changes protections, and forks children that share its memory. It
// checks the words of a mapping before each change, and those of all mappings when it runs on
// another node. So it finds a page that a move has lost or has left old.
//
// clang-format off
//   mappings   SIZE_MIB MiB together, on average. The words of a page are made from its stamp;
//              a page with stamp 0 must read as zeros
//   children   up to kChildrenMax, each for some steps. They check what they share, then end
//   output     for each step: its number, the node, the time, the number of wrong words so far,
//              also of children
// clang-format on
//
// Usage: memory_changer DIR SIZE_MIB STEPS_PER_S [SEED]

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <random>
#include <vector>

#include "arithmetic.h"
#include "posix.h"

namespace ppmr_programs {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kWordsPerPage = kPage / sizeof(uint64_t);
constexpr size_t kMappingMax = 512;  // in pages
constexpr size_t kChildrenMax = 3;

// Ends with an error that includes what the kernel has mapped at this place.
[[noreturn]] void die_at(const std::byte* at, size_t bytes) {
  const std::string why = strerror(errno);
  fprintf(stderr, "mremap of %p, %zu bytes: %s\n", static_cast<const void*>(at), bytes,
          why.c_str());
  std::ifstream file("/proc/self/smaps");
  bool is_there = false;
  for (std::string line; std::getline(file, line);) {
    unsigned long first = 0, end = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &first, &end) == 2) {
      const auto start = reinterpret_cast<unsigned long>(at);
      is_there = first <= start + bytes && end >= start;
      if (is_there) fprintf(stderr, "%s\n", line.c_str());
    }
    if (is_there && line.starts_with("VmFlags:")) fprintf(stderr, "%s\n", line.c_str());
  }
  _exit(1);
}

struct Mapping {
  std::byte* at = nullptr;
  std::vector<uint64_t> stamps;  // stamp of each page
  bool read_only = false;

  size_t bytes() const { return stamps.size() * kPage; }
  uint64_t* page(size_t number) const { return reinterpret_cast<uint64_t*>(at + number * kPage); }
};

class Changer {
 public:
  Changer(const std::string& directory, size_t size_mib, uint64_t steps_per_s, uint64_t seed)
      : random_(seed),
        mappings_(std::max<size_t>(4, size_mib * 256 * 2 / kMappingMax)),
        output_(directory + "/output"),
        pace_(static_cast<int64_t>(1'000'000'000 / steps_per_s)) {
    for (Mapping& mapping : mappings_) map(mapping);
    LineFile ready(directory + "/ready");
  }

  [[noreturn]] void run() {
    for (uint64_t number = 1;; ++number, pace_.wait()) {
      step();
      reap();
      const std::string node = node_name();
      output_.line("line=%llu node=%s real_ns=%lld wrong=%llu children=%zu",
                   static_cast<unsigned long long>(number), node.c_str(),
                   static_cast<long long>(realtime_ns()),
                   static_cast<unsigned long long>(wrong_words_), children_.size());
      // Checks after the line is written, so that the gap between the lines of two nodes is the
      // downtime.
      if (node != last_node_) {
        for (const Mapping& mapping : mappings_) wrong_words_ += wrong_words(mapping);
        last_node_ = node;
      }
    }
  }

 private:
  size_t draw(size_t count) { return random_() % count; }

  void map(Mapping& mapping) {
    mapping.stamps.assign(1 + draw(kMappingMax), 0);
    void* at =
        mmap(nullptr, mapping.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    // Without huge pages the kernel marks each written page separately.
    madvise(at, mapping.bytes(), MADV_NOHUGEPAGE);
    mapping.at = static_cast<std::byte*>(at);
    mapping.read_only = false;
    for (size_t page = 0; page < mapping.stamps.size(); ++page) {
      if (draw(8) != 0) write_page(mapping, page);  // some pages stay unused
    }
  }

  void write_page(Mapping& mapping, size_t page) {
    const uint64_t stamp = ++last_stamp_;
    mapping.stamps[page] = stamp;
    for (size_t i = 0; i < kWordsPerPage; ++i) mapping.page(page)[i] = memory_word(stamp, i);
  }

  // Counts the wrong words among a few words of each page.
  uint64_t wrong_words(const Mapping& mapping) const {
    uint64_t wrong = 0;
    for (size_t page = 0; page < mapping.stamps.size(); ++page) {
      const uint64_t stamp = mapping.stamps[page];
      for (size_t i = 0; i < kWordsPerPage; i += 73) {
        wrong += mapping.page(page)[i] != (stamp == 0 ? 0 : memory_word(stamp, i));
      }
    }
    return wrong;
  }

  void step() {
    Mapping& mapping = mappings_[draw(mappings_.size())];
    wrong_words_ += wrong_words(mapping);
    const size_t first = draw(mapping.stamps.size());
    const size_t count = 1 + draw(std::min<size_t>(16, mapping.stamps.size() - first));
    switch (draw(8)) {
      case 0:  // a new mapping, often at an old address
        munmap(mapping.at, mapping.bytes());
        map(mapping);
        break;
      case 1: {  // moves the mapping to another address and changes its length
        const size_t old_bytes = mapping.bytes();
        mapping.stamps.resize(1 + draw(kMappingMax), 0);
        void* at = mremap(mapping.at, old_bytes, mapping.bytes(), MREMAP_MAYMOVE);
        if (at == MAP_FAILED) die_at(mapping.at, old_bytes);
        mapping.at = static_cast<std::byte*>(at);
        break;
      }
      case 2:  // gives pages back to the kernel
        if (madvise(mapping.page(first), count * kPage, MADV_DONTNEED) != 0) die("madvise");
        std::fill_n(mapping.stamps.begin() + static_cast<std::ptrdiff_t>(first), count, 0);
        break;
      case 3: {
        mapping.read_only = !mapping.read_only;
        const int protection = mapping.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
        if (mprotect(mapping.at, mapping.bytes(), protection) != 0) die("mprotect");
        return;
      }
      case 4:
        fork_child();
        break;
      default:
        if (mapping.read_only) return;
        for (size_t i = 0; i < count; ++i) write_page(mapping, first + i);
    }
    // Without this call, parts of the mapping may have different protections.
    if (mapping.read_only && mprotect(mapping.at, mapping.bytes(), PROT_READ) != 0) die("mprotect");
  }

  void fork_child() {
    if (children_.size() >= kChildrenMax) return;
    const pid_t child = fork();
    if (child < 0) die("fork");
    if (child > 0) {
      children_.push_back(child);
      return;
    }
    uint64_t wrong = 0;
    for (int round = 0; round < 10; ++round) {
      for (Mapping& mapping : mappings_) {
        wrong += wrong_words(mapping);
        const size_t page = draw(mapping.stamps.size());
        if (!mapping.read_only && draw(4) == 0) write_page(mapping, page);
      }
      sleep_ns(100'000'000);
    }
    _exit(wrong == 0 ? 0 : 1);
  }

  void reap() {
    std::erase_if(children_, [this](pid_t child) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) != child) return false;
      wrong_words_ += status == 0 ? 0 : 1;
      return true;
    });
  }

  std::mt19937_64 random_;
  std::vector<Mapping> mappings_;
  std::vector<pid_t> children_;
  LineFile output_;
  Pace pace_;
  std::string last_node_ = node_name();
  uint64_t last_stamp_ = 0;
  uint64_t wrong_words_ = 0;
};

}  // namespace
}  // namespace ppmr_programs

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    fprintf(stderr, "usage: memory_changer DIR SIZE_MIB STEPS_PER_S [SEED]\n");
    return 2;
  }
  ppmr_programs::Changer(argv[1], strtoul(argv[2], nullptr, 10), strtoul(argv[3], nullptr, 10),
                         argc == 5 ? strtoul(argv[4], nullptr, 10) : 1)
      .run();
}
