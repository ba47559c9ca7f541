#include "cli/doctor/filter_checks.h"

#include <fmt/format.h>

namespace ppmr {

Diagnoses check_left_locks(const std::vector<LockedConnection>& left) {
  if (left.empty()) return {};
  const std::string more = left.size() > 1 ? fmt::format(" and {} more", left.size() - 1) : "";
  return {warning(
      "filter-rules",
      fmt::format("filter rules of CRIU keep this node from answering for connections that have "
                  "moved: {}{}",
                  text_of(left.front()), more),
      "None is needed if the peers have closed these connections. ppmr removes the rules within "
      "20 s when their address has left this node: move the address, or remove the rules with "
      "`iptables -D` or `nft delete table`")};
}

}  // namespace ppmr
