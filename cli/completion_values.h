// The values that a shell offers for an option or an argument: what is on this node now. The
// scripts of `ppmr completion` ask the hidden command `ppmr completion-values KIND`.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

// Returns the kind of values of an option ("--pid"), or of the argument of a command (""). Empty:
// the shell offers files. Pure.
std::string kind_of_values(const std::string& command, const std::string& option);

// Returns the values without those that a shell could expand or read as an option: bash expands the
// words that it completes. The result is sorted, has each value once, and at most 500 values. Pure.
std::vector<std::string> offered(std::vector<std::string> values);

struct CompletionValuesCommand {
  std::string kind;
  // Prints one value per line. Prints none if the kind is unknown, or if its values cannot be read.
  // Changes nothing.
  int run() const;
};

}  // namespace ppmr
