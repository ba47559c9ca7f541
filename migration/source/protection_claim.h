// A running `ppmr protect` holds a lock on a file in /run/ppmr that says which process it protects.
// Both copy the memory of a running process, and only one can follow what the process writes: so a
// move of that process is refused, with the name of the protection.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/process_identity.h"

namespace ppmr {

inline constexpr const char* kProtectionDirectory = "/run/ppmr";

struct ProtectionClaim {
  std::string name;      // of the protection at its partner
  ProcessIdentity root;  // the process that is protected with its descendants
  pid_t protector = 0;   // pid of `ppmr protect`
};

// Locks the file of this name, and empties it: what an earlier holder has claimed is over. The lock
// ends with the descriptor. Errors: EBUSY while another process has it; of the file system.
Result<UniqueFd> lock_protection(const std::string& name,
                                 const std::string& directory = kProtectionDirectory);
// Writes the claim into the locked file. Errors: of the file system.
Status claim_protection(const UniqueFd& lock, const ProtectionClaim& claim);

// Returns a claim whose holder lives and that shares a process with `wanted`. Leaves out files that
// it cannot read. `tasks_of`: returns a process with its descendants.
std::optional<ProtectionClaim> find_protection(
    const std::vector<ProcessIdentity>& wanted,
    const std::function<std::vector<ProcessIdentity>(const ProcessIdentity& root)>& tasks_of,
    const std::string& directory = kProtectionDirectory);

// Returns who protects the process, and what the operator does before a move.
std::string describe_protection(const ProtectionClaim& claim);

}  // namespace ppmr
