// Measures the first touch of fresh memory, by region of the image store. The result is the speed
// at which the target's reserve fills. Interleave the ways, because memory that the host has not
// backed yet is slow in each way:
//
//   first_touch --benchmark_enable_random_interleaving=true --benchmark_repetitions=7
//       --benchmark_report_aggregates_only=true
#include <benchmark/benchmark.h>

#include <vector>

#include "base/mapped_memory.h"

namespace ppmr {
namespace {

constexpr size_t kRegionBytes = size_t{64} << 20;
constexpr size_t kExtentBytes = size_t{2} << 20;
constexpr size_t kRegions = 16;

enum class Way { kPrivate, kShared, kSharedSmallPages };

void touch(benchmark::State& state, Way way) {
  for (auto _ : state) {
    std::vector<MappedMemory> regions;
    for (size_t i = 0; i < kRegions; ++i) {
      auto region = way == Way::kPrivate ? MappedMemory::create(kRegionBytes)
                                         : MappedMemory::create_shared(kRegionBytes);
      if (!region) return state.SkipWithError(region.error().message.c_str());
      const auto bytes = region->bytes();
      for (size_t at = 0; at < kRegionBytes; at += kExtentBytes) {
        if (way == Way::kShared) MappedMemory::make_huge(bytes.subspan(at, kExtentBytes));
        MappedMemory::touch(bytes.subspan(at, kExtentBytes));
      }
      regions.push_back(std::move(*region));
    }
    state.PauseTiming();
    regions.clear();
    state.ResumeTiming();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kRegions * kRegionBytes));
}
BENCHMARK_CAPTURE(touch, private_huge_pages, Way::kPrivate)->UseRealTime()->Iterations(2);
BENCHMARK_CAPTURE(touch, memfd_huge_pages, Way::kShared)->UseRealTime()->Iterations(2);
BENCHMARK_CAPTURE(touch, memfd_small_pages, Way::kSharedSmallPages)->UseRealTime()->Iterations(2);

}  // namespace
}  // namespace ppmr

BENCHMARK_MAIN();
