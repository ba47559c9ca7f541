// `ppmr write-epochs`, at the partner of protected processes whose target has --keep-dir: writes
// the newest epoch of each to the disk in the background, and brings epochs back that the memory of
// the node has lost.
//
//   DIR/epochs/NAME.kept   the newest epoch that is complete, in the form of a kept checkpoint
//             /NAME.part   the next one; removed at the start
//             /lock        held by the writer
//
//   start   NAME.kept --> /run/ppmr/epochs/NAME, if the memory has no epoch of it
//   loop    a newer epoch in memory: hold it --> NAME.part --sync, rename, sync--> NAME.kept
//
// The lock of the tree is held for the first and the last step only, so the next epoch is sealed
// while this one is written. What is sealed meanwhile is skipped, except the newest.
//
// The helper of the target's daemon starts it, and it ends with the helper.
#pragma once

#include <string>

namespace ppmr {

struct WriteEpochsCommand {
  std::string keep_directory;
  std::string key_file;
  std::string state_directory;
  std::string mountpoint;  // of the target: epochs that arrive elsewhere are left alone
  int parent = 0;          // the helper

  // Returns an exit code if it cannot work.
  int run() const;
};

}  // namespace ppmr
