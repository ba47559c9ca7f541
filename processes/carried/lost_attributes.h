// Attributes of a process that /proc shows and that neither CRIU nor ppmr carries. The dry run
// reports them.
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
  // The process has sealed mappings (mseal(2)). Mappings of the kernel do not count.
  bool has_seals = false;
  // The process has mappings with a protection key (pkey_mprotect(2)).
  bool has_protection_keys = false;
};

// Parses the text of /proc/PID/smaps. Sets has_seals and has_protection_keys.
void parse_protected_mappings(std::string_view smaps, LostAttributes& lost);
// Parses the text of /proc/PID/numa_maps. Returns whether mappings have different memory policies:
// then some mapping has another policy than its task.
bool has_policies_of_mappings(std::string_view numa_maps);
// Compares `status`, the text of /proc/TID/status of a thread, with `plain`, the text for a process
// without such attributes. Returns phrases for messages.
std::vector<std::string> lost_in_status(std::string_view status, std::string_view plain);

// Reads the lost attributes of a process and its threads. Errors: ESRCH, EACCES.
Result<LostAttributes> read_lost_attributes(pid_t pid);

}  // namespace ppmr
