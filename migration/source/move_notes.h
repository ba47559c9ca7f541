// The progress of the trees of a move. The coordinator notes it beside the record for `ppmr
// migrations` and `ppmr status --watch`. The notes are not durable, and nothing depends on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace ppmr {

struct TreeNotes {
  uint64_t round = 0;          // counts from 1; 0: none has begun
  uint64_t round_bytes = 0;    // of this round
  uint64_t earlier_bytes = 0;  // of the rounds before it
  uint64_t fill_bytes = 0;     // memory that was missing when the tree began to run
  uint64_t missing_bytes = 0;  // the part of fill_bytes that is still missing
};

// `directory`: the record's; `tree`: the number of the tree. Errors: those of the file system.
Status write_tree_notes(const std::string& directory, size_t tree, const TreeNotes& notes);
// Returns zeros if there are no notes.
TreeNotes read_tree_notes(const std::string& directory, size_t tree);

}  // namespace ppmr
