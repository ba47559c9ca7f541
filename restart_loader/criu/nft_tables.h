// Tables of nftables, through netlink. Neither CRIU nor this code needs the program `nft`.
//
// All functions use the calling thread's network namespace and the family "inet".
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Returns the names of all tables. Empty if the kernel has no nftables. Errors: EPERM; EBUSY if the
// tables change during each of many attempts.
Result<std::vector<std::string>> list_nft_tables();

// Returns whether the set of this table has this element. `key`: its bytes, as the kernel keeps
// them.
bool nft_set_has(const std::string& table, const std::string& set, const std::string& key);

// Returns the elements of this set, as the kernel keeps their bytes. Empty: it has none, or there
// is no such set. Errors: as for list_nft_tables().
Result<std::vector<std::string>> list_nft_set(const std::string& table, const std::string& set);

// Removes the table with all its rules. Errors: those of the kernel.
Status remove_nft_table(const std::string& table);

}  // namespace ppmr
