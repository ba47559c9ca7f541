// Fuzzes the page index, which the source writes into the checkpoint.
#include "processes/memory/page_index.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  const auto index = parse_page_index(text_of(input));
  if (!index) return;
  for (const IndexedTask& task : index->tasks) {
    uint64_t last_end = 0;
    for (const PageRange& range : task.ranges) {
      REQUIRE(range.start >= last_end && range.end > range.start && range.end <= kAddressMax);
      REQUIRE(range.bytes() <= index->memory_bytes);
      REQUIRE(range.offset <= index->memory_bytes - range.bytes());
      last_end = range.end;
    }
    std::vector<PageRange> places;
    (void)find_places(task.ranges, 0, kAddressMax, places);
  }
  const auto again = parse_page_index(to_bytes(*index));
  REQUIRE(again && to_bytes(*again) == to_bytes(*index));
}
