#include "migration/protect/seal_policy.h"

#include <algorithm>
#include <numeric>

namespace ppmr {

Result<SealPolicy> parse_seal_policy(const std::string& text) {
  if (text == "all") return SealPolicy::kAll;
  if (text == "quorum") return SealPolicy::kQuorum;
  if (text == "any") return SealPolicy::kAny;
  return failure(EINVAL, "'" + text + "' is not all, quorum or any");
}

size_t needed_partners(SealPolicy policy, size_t partners) {
  switch (policy) {
    case SealPolicy::kAll:
      return partners;
    case SealPolicy::kQuorum:
      return partners / 2 + 1;
    case SealPolicy::kAny:
      break;
  }
  return 1;
}

size_t find_sealed(SealPolicy policy, const std::vector<SealedEpoch>& kept) {
  std::vector<size_t> newest_first(kept.size());
  std::iota(newest_first.begin(), newest_first.end(), size_t{0});
  std::stable_sort(newest_first.begin(), newest_first.end(), [&](size_t left, size_t right) {
    return kept[left].number > kept[right].number;
  });
  return newest_first[needed_partners(policy, kept.size()) - 1];
}

}  // namespace ppmr
