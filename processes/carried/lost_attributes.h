// What /proc shows of a process, and neither CRIU nor ppmr carries. The dry run names it.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

struct LostAttributes {
  // Phrases for messages: "memory policy (NUMA) of single mappings (mbind)".
  std::vector<std::string> phrases;
  // It has mappings that cannot be changed any more (mseal(2)); those of the kernel do not count.
  bool has_seals = false;
  // It has mappings that it protects by a key (pkey_mprotect(2)).
  bool has_protection_keys = false;
};

// Reads /proc/PID/smaps. Sets has_seals and has_protection_keys.
void parse_protected_mappings(std::string_view smaps, LostAttributes& lost);
// Reads /proc/PID/numa_maps: whether mappings have different memory policies, so not only that of
// their task.
bool has_policies_of_mappings(std::string_view numa_maps);
// Reads /proc/TID/status of a thread, and that of a process with nothing special.
std::vector<std::string> lost_in_status(std::string_view status, std::string_view plain);

// Reads them of a process and its threads. Errors: ESRCH, EACCES.
Result<LostAttributes> read_lost_attributes(pid_t pid);

}  // namespace ppmr
