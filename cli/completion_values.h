// The values that a shell offers for an option or an argument: what is on this node now. The
// scripts of `ppmr completion` ask the hidden command `ppmr completion-values KIND`.
#pragma once

#include <string>
#include <vector>

namespace ppmr {

// Returns the kind of values of an option ("--pid"), or of the argument of a command (""). Empty:
// the shell offers files. Pure.
std::string kind_of_values(const std::string& command, const std::string& option);

// Keeps the values that no shell can take for something else: bash expands the words that it
// completes. Sorted, each once, at most some hundreds. Pure.
std::vector<std::string> offered(std::vector<std::string> values);

struct CompletionValuesCommand {
  std::string kind;
  // Prints one value per line. An unknown kind, or what cannot be read, has none. Changes nothing.
  int run() const;
};

}  // namespace ppmr
