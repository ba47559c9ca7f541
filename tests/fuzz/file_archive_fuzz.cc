// Fuzzes the records of files in memory, which the source sends.
#include <cstring>

#include "processes/files/file_archive.h"
#include "tests/fuzz/fuzz.h"

void fuzz(std::span<const uint8_t> input) {
  using namespace ppmr;
  size_t at = 0;
  FileRecordReader reader([&](std::span<char> into) -> Result<size_t> {
    const size_t n = std::min(into.size(), input.size() - at);
    std::memcpy(into.data(), input.data() + at, n);
    at += n;
    return n;
  });
  std::string again;
  for (;;) {
    const auto record = reader.next();
    if (!record) break;
    if (const auto* const entry = std::get_if<file_record::Entry>(&*record)) {
      REQUIRE(!entry->name.empty() && entry->name != "." && entry->name != "..");
      REQUIRE(entry->name.find('/') == std::string::npos);
    }
    append_file_record(*record, again);
  }
  REQUIRE(again == text_of(input).substr(0, again.size()));
}
