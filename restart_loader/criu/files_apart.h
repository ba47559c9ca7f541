// Lets CRIU leave out the content of a tmpfs that travels apart from its images
// (migration/source/file_parts.h).
//
//   dump      CRIU starts tar to archive a tmpfs. If the list in the work directory has its device,
//             the archive is one line that names the number of the tmpfs.
//   restore   CRIU mounts an empty tmpfs and starts tar to fill it. If the archive is such a line,
//             the tmpfs that the supervisor has filled takes its place.
//
// The line is not a tar archive. So a restore without this code fails, instead of losing the files.
//
// Rejected: external mounts of CRIU. They need a path of the target in CRIU's options, and CRIU
// then treats them as shared with the host.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ppmr {

// In the work directory of a dump: a line "DEVICE NUMBER" for each tmpfs that is left out.
inline constexpr const char* kFilesApart = "files-apart";
// In the work directory of a restore: a directory with a mount for each tmpfs, by its number.
inline constexpr const char* kFilledTmpfs = "files";

// Returns the number of the tmpfs in the line that replaces its archive; nullopt: `archive` is a
// real archive. Pure.
std::optional<unsigned> parse_line_of_tmpfs(std::string_view archive);

// Puts a filled tmpfs in the place of the mount at `directory`, with its flags. The mount must be
// in this process's mount namespace. `work_directory`: the work directory of the restore. Errors:
// those of the system calls for mounts.
Status put_filled_tmpfs(const std::string& work_directory, unsigned number,
                        const std::string& directory);

// `ppmr tar-of-criu`. The script that CRIU runs as tar (plain_tar.h) starts it first.
struct TarOfCriu {
  std::string work_directory;
  std::vector<std::string> arguments;  // tar's arguments

  // Returns 0 if it has done the work of tar, kRunTar if tar must do it.
  int run() const;
  static constexpr int kRunTar = 125;
};

}  // namespace ppmr
