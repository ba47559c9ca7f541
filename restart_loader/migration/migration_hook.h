// What is done when CRIU tells that it has dumped or restored a tree and everything but letting it
// go is done. The hook holds CRIU, and with it the tree, until the record of this node says what
// shall become of it. It does not depend on anybody else being alive.
#pragma once

#include <string>

#include "restart_loader/records/record_store.h"

namespace ppmr {

// The moment at which CRIU began to freeze the tree, in the work directory; 0 when it did not.
int64_t read_freeze_began_ns(const std::string& work_directory);
void note_freeze_begins(const std::string& work_directory);

struct MigrationHook {
  std::string state_directory;
  std::string id;
  std::string role;  // "source" or "target"
  size_t tree = 0;
  pid_t criu = 0;           // whom it holds
  pid_t restored_root = 0;  // at the target

  // Returns when that is decided. With true CRIU kills the tree at the source, and lets it run at
  // the target; with false the other way round.
  bool lets_criu_go_on() const;
};

}  // namespace ppmr
