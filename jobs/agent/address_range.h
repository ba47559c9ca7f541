// The addresses that one home assigns to its jobs. The ranges of homes must not overlap.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/result.h"

namespace ppmr {

struct AddressRange {
  uint32_t first = 0, last = 0;  // in host byte order

  size_t count() const { return last - first + 1; }
};

// Parses a range, for example "10.3.7.0/24". Leaves out its first and last address. Errors: EINVAL.
Result<AddressRange> parse_address_range(const std::string& text);

// Returns the default range of `host`: 10.C.D.0/24 if its IPv4 address is A.B.C.D. So the homes in
// one /16 network need no configuration. Errors: EADDRNOTAVAIL if the name has only loopback
// addresses.
Result<AddressRange> default_address_range(const std::string& host);

std::string format_address(uint32_t address);

// Assigns the addresses in turn. So an address that became free stays free for as long as possible:
// an unreachable host may still use it. Threads: one at a time.
class AddressPool {
 public:
  explicit AddressPool(AddressRange range) : range_(range), next_(range.first) {}
  // Marks an address as taken, because a job has it already. Ignores addresses outside of the
  // range.
  void take(const std::string& address);
  bool is_taken(const std::string& address) const;
  // Returns the next free address. Errors: EADDRNOTAVAIL when all are taken.
  Result<std::string> take_next();
  void give_back(const std::string& address);
  size_t free_count() const { return range_.count() - taken_.size(); }

 private:
  const AddressRange range_;
  uint32_t next_;
  std::set<uint32_t> taken_;
};

}  // namespace ppmr
