// The files of kept checkpoints in the target's --keep-dir: a file has a number and one of two
// names.
//
//   00000007.part  being written; removed when a target starts
//   00000007.kept  complete and synced
//
// The data daemon has no access to files by name. Its privileged helper has this access, and uses
// this class.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// The operations of a target on the files. Errors: those of the system calls; EINVAL for a negative
// number. Threads: any.
class KeptFiles {
 public:
  virtual ~KeptFiles() = default;

  // Opens the directory, to list and to sync it. Opens it anew each time, because an operator may
  // mount another file system there.
  virtual Result<UniqueFd> open_kept_directory() = 0;
  // Creates NUMBER.part, mode 0600, for reading and writing. Errors: EEXIST.
  virtual Result<UniqueFd> create_kept(int32_t number) = 0;
  // Renames NUMBER.part to NUMBER.kept, and returns the directory. The caller syncs the file
  // before, and the directory afterwards.
  virtual Result<UniqueFd> publish_kept(int32_t number) = 0;
  // Opens NUMBER.kept to read it.
  virtual Result<UniqueFd> open_kept(int32_t number) = 0;
  // Removes NUMBER.part and NUMBER.kept, and returns the directory. Succeeds if neither exists. The
  // caller syncs the directory.
  virtual Result<UniqueFd> remove_kept(int32_t number) = 0;
};

// Threads: any.
class KeptFilesIn final : public KeptFiles {
 public:
  explicit KeptFilesIn(std::string directory) : directory_(std::move(directory)) {}

  Result<UniqueFd> open_kept_directory() override;
  Result<UniqueFd> create_kept(int32_t number) override;
  Result<UniqueFd> publish_kept(int32_t number) override;
  Result<UniqueFd> open_kept(int32_t number) override;
  Result<UniqueFd> remove_kept(int32_t number) override;

 private:
  const std::string directory_;
};

struct ListedKeptFile {
  int32_t number = 0;
  bool complete = false;  // true: NUMBER.kept; false: NUMBER.part
};

std::string kept_file_name(int32_t number, bool complete);
// Returns the files with such names, sorted by number. Ignores other files. Errors: those of
// readdir(3).
Result<std::vector<ListedKeptFile>> list_kept_files(const UniqueFd& directory);

}  // namespace ppmr
