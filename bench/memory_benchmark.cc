// What this machine's memory gives: the ceiling of everything that copies, and what a checksum
// costs. Buffers are larger than the caches.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <vector>

#include "buffer_pool/crc32c.h"

namespace ppmr {
namespace {

constexpr size_t kBufferBytes = size_t{128} << 20;
constexpr size_t kStepBytes = size_t{1} << 20;  // a full chunk

class Buffer {
 public:
  explicit Buffer(char fill) : bytes_(kBufferBytes, std::byte(fill)) {}
  std::span<std::byte> next() {
    at_ = at_ + 2 * kStepBytes > bytes_.size() ? 0 : at_ + kStepBytes;
    return std::span(bytes_).subspan(at_, kStepBytes);
  }

 private:
  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

void copy(benchmark::State& state) {
  Buffer from(1), to(2);
  for (auto _ : state) {
    std::memcpy(to.next().data(), from.next().data(), kStepBytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kStepBytes));
}
BENCHMARK(copy)->Name("memcpy")->UseRealTime()->ThreadRange(1, 2);

void checksum(benchmark::State& state) {
  Buffer from(1);
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(from.next()));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kStepBytes));
}
BENCHMARK(checksum)->Name("crc32c")->UseRealTime()->ThreadRange(1, 2);

}  // namespace
}  // namespace ppmr

BENCHMARK_MAIN();
