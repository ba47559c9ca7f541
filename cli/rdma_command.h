#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace ppmr {

// Starts a program with the library of movable verbs (verbs_library).
struct RdmaRunCommand {
  std::string directory;  // empty: one of the user, on this machine
  std::vector<std::string> program;

  int run() const;  // returns only if the program did not start
};

// The value of LD_PRELOAD that adds the library to what is there. Errors: EINVAL: the path has a
// character that separates paths there.
Result<std::string> preload_with(const std::string& library, const char* before);

// Makes the directory in which peers find each other, unless it exists. Errors: EPERM: others could
// write there; and those of mkdir.
Status prepare_verbs_directory(const std::string& directory);

}  // namespace ppmr
