// The files of kept checkpoints in the target's --keep-dir: a file has a number and one of two
// names.
//
//   00000007.part  being written; removed when a target starts
//   00000007.kept  complete and synced
//
// The data daemon has no access to files by name. Its privileged helper has, and uses this class.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// What a target does with the files. Errors: those of the system calls; EINVAL for a negative
// number. Threads: any.
class KeptFiles {
 public:
  virtual ~KeptFiles() = default;

  // The directory, to list and to sync it. Opened anew, because an operator may mount another file
  // system there.
  virtual Result<UniqueFd> open_kept_directory() = 0;
  // Creates NUMBER.part, mode 0600, for reading and writing. Errors: EEXIST.
  virtual Result<UniqueFd> create_kept(int32_t number) = 0;
  // Renames NUMBER.part to NUMBER.kept. The caller syncs the file before, and the directory that
  // this returns after it.
  virtual Result<UniqueFd> publish_kept(int32_t number) = 0;
  // Opens NUMBER.kept to read it.
  virtual Result<UniqueFd> open_kept(int32_t number) = 0;
  // Removes both names. Succeeds if there are none. The caller syncs the directory.
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
  bool complete = false;  // .kept, not .part
};

std::string kept_file_name(int32_t number, bool complete);
// Lists the files with such names, by number. Other files are left alone. Errors: those of
// readdir(3).
Result<std::vector<ListedKeptFile>> list_kept_files(const UniqueFd& directory);

}  // namespace ppmr
