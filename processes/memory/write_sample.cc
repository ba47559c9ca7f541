#include "processes/memory/write_sample.h"

#include <algorithm>
#include <array>
#include <list>
#include <thread>

#include "processes/memory/live_memory.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The looks are closer together at first: a small set of pages that the tree writes all the time is
// complete within milliseconds.
constexpr std::array kLooks = {milliseconds(25),  milliseconds(50),  milliseconds(100),
                               milliseconds(200), milliseconds(400), milliseconds(800)};
// A look at hundreds of GiB takes long. The last look of such a tree is an earlier one.
constexpr milliseconds kLongest{900};

struct Watched {
  LiveMemory memory;
  Clock::time_point began;
  Result<WriteSample> sample = WriteSample{};
};

void look(Watched& tree) {
  const auto at = Clock::now();
  const uint64_t bytes = tree.memory.count_written_bytes();
  std::vector<WrittenAfter>& written = tree.sample->written;
  const uint64_t before = written.empty() ? 0 : written.back().bytes;  // pages may be unmapped
  written.push_back({at - tree.began, std::max(bytes, before)});
}

}  // namespace

std::vector<Result<WriteSample>> sample_writes(const std::vector<pid_t>& roots,
                                               const std::set<pid_t>& releasers) {
  std::list<Watched> trees;  // LiveMemory does not move
  const auto began = Clock::now();
  for (const pid_t root : roots) {
    Watched& tree = trees.emplace_back();
    tree.memory.expect_release_of(releasers);
    const auto round = tree.memory.next_round(root);
    tree.began = Clock::now();
    if (round) {
      tree.sample->memory_bytes = round->memory_bytes;
    } else {
      tree.sample = failure(round.error());
    }
  }
  const auto first = Clock::now();
  for (const milliseconds at : kLooks) {
    if (at > kLooks.front() && Clock::now() - began > kLongest) break;
    std::this_thread::sleep_until(first + at);
    for (Watched& tree : trees) {
      if (tree.sample) look(tree);
    }
  }
  std::vector<Result<WriteSample>> samples;
  for (Watched& tree : trees) samples.push_back(std::move(tree.sample));
  return samples;
}

}  // namespace ppmr
