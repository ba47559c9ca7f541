// The regular files that a frozen tree has open for writing, with their sizes. A protected tree
// goes on writing after an epoch. A takeover from this epoch must know which files the tree has
// written since, and where they ended at the epoch. CRIU records no size of files that are only
// appended to, and no times.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/process_identity.h"

namespace ppmr {

// The name of the file among CRIU's images.
inline constexpr const char* kWrittenFilesFile = "written-files.img";

struct FileOwner {
  uid_t uid = 0;
  gid_t gid = 0;
  bool operator==(const FileOwner&) const = default;
};

struct WrittenFile {
  std::string path;  // as the tree sees it
  uint64_t size_bytes = 0;
  bool is_appended = false;  // each of its writers writes at its end only (O_APPEND)
  // When it was last modified, by the clock of its file system; 0: not noted.
  int64_t modified_ns = 0;
  std::optional<FileOwner> owner;  // nullopt: not noted
};

// Returns whether a file differs from its record: a process has written to it since, perhaps in
// place, or another file has its name now. An earlier time is a difference, too: the other file may
// be older. Pure.
bool has_changed(const WrittenFile& noted, const struct stat& now);

// Opens a file that has grown, so that it can be cut back to its noted size. The tree that named
// the path may have put a symbolic link to another user's file there. So this function opens the
// file with the rights of its noted owner, and does not follow a link in the last component of the
// path. The path of a file of root, or of a file without a noted owner, must contain no symbolic
// link at all. Errors: those of open(2); EPERM if this process cannot take the rights of the owner;
// ESTALE if the file is not longer than noted, is not a regular file, or has another owner.
Result<UniqueFd> open_to_cut(const WrittenFile& noted);
// Cuts the file back to its noted size. Errors: those of open_to_cut() and ftruncate(2).
Status cut_back(const WrittenFile& noted);

// Returns the files sorted by path, each once, without deleted files. Errors: ESRCH for a task that
// has ended; EACCES.
Result<std::vector<WrittenFile>> read_written_files(const std::vector<ProcessIdentity>& tasks);

// Errors: of the file system; EPROTO for a file that ppmr has not written.
Status write_written_files(const std::string& path, const std::vector<WrittenFile>& files);
Result<std::vector<WrittenFile>> load_written_files(const std::string& path);

}  // namespace ppmr
