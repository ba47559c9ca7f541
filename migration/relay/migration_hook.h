// The hook runs after CRIU has dumped or restored a tree, and before CRIU kills or releases it.
// The hook holds CRIU, and thereby the tree, until the record of this node decides. The hook needs
// no other process to be alive.
#pragma once

#include <string>

#include "migration/records/record_store.h"

namespace ppmr {

// Returns the time at which CRIU began to freeze the tree, or 0 if CRIU has not begun. The time is
// kept in the work directory.
int64_t read_freeze_began_ns(const std::string& work_directory);
void note_freeze_began(const std::string& work_directory);

// The file in the target's work directory that says why the hook ended the restore: state that CRIU
// does not carry could not be applied, or a process was killed.
inline constexpr const char* kCarriedErrorFile = "/carried-error";

struct MigrationHook {
  std::string state_directory;
  std::string id;
  std::string role;  // "source" or "target"
  size_t tree = 0;
  pid_t criu = 0;           // the held process
  pid_t restored_root = 0;  // at the target
  std::string images;       // at the source: the directory of CRIU's images

  // Blocks until the decision. Returns whether CRIU may continue. A CRIU that continues kills the
  // tree at the source (a copy: lets it run on), and lets it run at the target. A CRIU that fails
  // lets the tree run on at the source, and kills it at the target.
  bool lets_criu_go_on() const;
};

}  // namespace ppmr
