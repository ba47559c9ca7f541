// A running `ppmr protect` holds a lock on a file in /run/ppmr that says which process it protects.
// A protection and a move both follow what a running process writes, and only one of them can do so
// at a time. So ppmr refuses a move of a protected process, and names the protection.
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

// Locks the file of this name, and empties it, because the claim of an earlier holder is over. The
// lock ends with the descriptor. Errors: EBUSY while another process has the lock; those of the
// file system.
Result<UniqueFd> lock_protection(const std::string& name,
                                 const std::string& directory = kProtectionDirectory);
// Writes the claim into the locked file. Errors: those of the file system.
Status claim_protection(const UniqueFd& lock, const ProtectionClaim& claim);

// Returns a claim whose holder lives and that shares a process with `wanted`. Leaves out files
// without a claim. `tasks_of`: returns a process with its descendants. Errors: those of the file
// system.
Result<std::optional<ProtectionClaim>> find_protection(
    const std::vector<ProcessIdentity>& wanted,
    const std::function<std::vector<ProcessIdentity>(const ProcessIdentity& root)>& tasks_of,
    const std::string& directory = kProtectionDirectory);

// Returns a text with the process that holds the claim, and what the operator must do before a
// move.
std::string describe_protection(const ProtectionClaim& claim);

}  // namespace ppmr
