// How many threads move the memory of a tree, by the processors of the node. Each stage must carry
// what the fastest link brings, and cost nothing where processors are few: with two, the memory is
// read by one thread and sent over two streams. bench/README.md has the cost of each stage.
#pragma once

#include <algorithm>
#include <cstddef>

namespace ppmr {

// Threads that read the memory of a frozen tree and encrypt it, beside the one for wanted blocks.
// Half of the processors: sending takes the others.
inline constexpr size_t kMemoryReadersMax = 8;
constexpr size_t memory_readers(size_t processors) {
  return std::clamp<size_t>(processors / 2, 1, kMemoryReadersMax);
}

// Data connections, with a thread at each end.
inline constexpr size_t kUsualStreamsMin = 2;
inline constexpr size_t kUsualStreamsMax = 8;
constexpr size_t usual_streams(size_t processors) {
  return std::clamp<size_t>(processors / 2, kUsualStreamsMin, kUsualStreamsMax);
}

// Threads of the pager that put pages into the restored processes.
inline constexpr size_t kPageFillersMax = 16;
constexpr size_t page_fillers(size_t processors) {
  return std::clamp<size_t>(processors, 1, kPageFillersMax);
}

}  // namespace ppmr
