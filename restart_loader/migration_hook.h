// What CRIU calls when it has dumped or restored a tree and everything but letting it go is done.
// The hook holds CRIU, and with it the tree, until the record of this node says what shall become
// of it. It does not depend on anybody else being alive. At the target it first sees to it that a
// lazily restored tree is guarded (pages_guard.h).
#pragma once

#include <string>

#include "restart_loader/record_store.h"

namespace ppmr {

// The --action-script for CRIU: one path, so a script of two lines in the work directory that runs
// `ppmr migration-hook` for the one action that matters. Errors: of the file system.
Result<std::string> write_hook_script(const RecordStore& store, const std::string& id,
                                      MigrationRole role, size_t tree,
                                      const std::string& work_directory);

// Where the script leaves the moment at which CRIU began to freeze the tree; 0 when it did not.
int64_t read_freeze_began_ns(const std::string& work_directory);
void note_freeze_begins(const std::string& work_directory);

struct MigrationHook {
  std::string state_directory;
  std::string id;
  std::string role;  // "source" or "target"
  size_t tree = 0;
  pid_t criu = 0;  // whom it holds; 0: its parent

  // The exit code for CRIU. At the source 0: kill the tree, else: let it run on. At the target 0:
  // let it run, else: kill it.
  int run() const;
};

}  // namespace ppmr
