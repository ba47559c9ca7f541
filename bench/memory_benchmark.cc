// Measures the memory bandwidth of the machine, which limits the speed of every copy, and the cost
// of a checksum and of encryption. Buffers are larger than the caches.
#include <benchmark/benchmark.h>

#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "rdma_stream/session/aes_gcm.h"

namespace ppmr {
namespace {

constexpr size_t kBufferBytes = size_t{64} << 20;
constexpr size_t kStepBytes = size_t{1} << 20;  // the size of a full chunk
constexpr int kThreadsMax = 2;

// A buffer whose next() returns another part each time, so that the bytes of the part are not in a
// cache.
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

// Buffers are created only once: Google Benchmark calls a benchmark several times to calibrate its
// duration.
struct Buffers {
  Buffer from{1}, to{2};
};
Buffers& buffers_of(const benchmark::State& state) {
  static std::array<Buffers, kThreadsMax> all;
  return all[static_cast<size_t>(state.thread_index())];
}

void copy(benchmark::State& state) {
  auto& [from, to] = buffers_of(state);
  for (auto _ : state) {
    std::memcpy(to.next().data(), from.next().data(), kStepBytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kStepBytes));
}
BENCHMARK(copy)->Name("memcpy")->UseRealTime()->ThreadRange(1, kThreadsMax);

void checksum(benchmark::State& state) {
  Buffer& from = buffers_of(state).from;
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(from.next()));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kStepBytes));
}
BENCHMARK(checksum)->Name("crc32c")->UseRealTime()->ThreadRange(1, kThreadsMax);

// Encrypts in place, as the source encrypts a slot.
void encryption(benchmark::State& state, AesLibrary library) {
  AesGcm cipher(std::array<uint8_t, AesGcm::kKeyBytes>{1}, library);
  Buffer& buffer = buffers_of(state).from;
  for (auto _ : state) {
    const auto bytes = buffer.next();
    if (!cipher.begin(AesGcm::Direction::kEncrypt, {}, {}) ||
        !cipher.run(bytes.data(), bytes.data(), bytes.size()) || !cipher.tag()) {
      return state.SkipWithError("cannot encrypt");
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kStepBytes));
}
BENCHMARK_CAPTURE(encryption, best, best_aes_library())
    ->Name("encryption")
    ->UseRealTime()
    ->ThreadRange(1, kThreadsMax);
BENCHMARK_CAPTURE(encryption, openssl, AesLibrary::kOpenSsl)
    ->Name("encryption by OpenSSL")
    ->UseRealTime()
    ->ThreadRange(1, kThreadsMax);

}  // namespace
}  // namespace ppmr

BENCHMARK_MAIN();
