#include "rdma_stream/verbs/verbs_window.h"

#include <bit>

namespace ppmr {

ReadWindow::Outcome ReadWindow::complete(uint64_t id, Pull& pull) {
  const size_t place = (id >> 8) & 0xff;
  const uint32_t part = id & 0xff;
  if (place >= entries_.size() || part >= kPartsMax) return Outcome::kUnknown;
  Entry& entry = entries_[place];
  const uint32_t bit = uint32_t{1} << part;
  if (entry.use == 0 || entry.use != id >> 16 || (entry.parts & bit) == 0) return Outcome::kUnknown;
  entry.parts &= ~bit;
  --works_;
  if (entry.parts != 0) return Outcome::kPart;
  pull = entry.pull;
  free(entry);
  return Outcome::kWhole;
}

bool ReadWindow::give_back(Pull& pull) {
  for (Entry& entry : entries_) {
    if (entry.use == 0) continue;
    pull = entry.pull;
    works_ -= static_cast<uint32_t>(std::popcount(entry.parts));
    free(entry);
    return true;
  }
  return false;
}

void ReadWindow::free(Entry& entry) {
  entry.use = 0;
  entry.parts = 0;
  --pulls_;
  bytes_ -= entry.pull.length;
}

}  // namespace ppmr
