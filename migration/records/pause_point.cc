#include "migration/records/pause_point.h"

namespace ppmr {

// A weak symbol: in the test build, tests/pause_point.cc replaces it.
[[gnu::weak]] void pause_point(const std::string&, const OwnershipRecord&) {}

}  // namespace ppmr
