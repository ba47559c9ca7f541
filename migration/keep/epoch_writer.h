// `ppmr write-epochs` runs at a partner whose target has --keep-dir. In the background, it writes
// the newest epoch of each protected process to the disk. After a start, it reads back from the
// disk the epochs that the memory of the node has lost.
//
//   DIR/epochs/NAME.kept   the newest epoch that is complete, in the form of a kept checkpoint
//             /NAME.part   the next one; removed at the start
//             /lock        held by the writer
//
//   start   NAME.kept --> /run/ppmr/epochs/NAME, if the memory has no epoch of it
//   loop    a newer epoch in memory: hold it --> NAME.part --sync, rename, sync--> NAME.kept
//
// The writer holds the lock of the tree for the first and the last step only, so the partner can
// seal later epochs during the write. Of these, the writer writes only the newest.
//
// The helper of the target's daemon starts the writer, and the writer ends with the helper.
#pragma once

#include <string>

namespace ppmr {

struct WriteEpochsCommand {
  std::string keep_directory;
  std::string key_file;
  std::string state_directory;
  std::string mountpoint;  // of the target: epochs that arrive elsewhere are left alone
  int parent = 0;          // the helper

  // Returns, with an exit code, only if it cannot start to work.
  int run() const;
};

}  // namespace ppmr
