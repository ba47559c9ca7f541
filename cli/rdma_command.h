#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Starts a program with the library of movable verbs (verbs_library).
struct RdmaRunCommand {
  std::string directory;  // where peers find each other; empty: this user's directory in /dev/shm
  std::vector<std::string> program;

  int run() const;  // returns only if the program did not start
};

// Returns a value of LD_PRELOAD that adds `library` to the present value `before`, which may be
// null. Errors: EINVAL: the path of the library has a character that separates paths in LD_PRELOAD.
Result<std::string> preload_with(const std::string& library, const char* before);

// Creates the directory in which peers find each other, unless it exists. Errors: EPERM if other
// users could write into it; ENOTDIR; those of mkdir() and stat().
Status prepare_verbs_directory(const std::string& directory);

}  // namespace ppmr
