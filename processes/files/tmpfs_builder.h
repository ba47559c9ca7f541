// Rebuilds the tmpfs of a tree from unchecked records (file_archive.h). Each tmpfs is a mount in a
// directory that only root can enter, so no other process can plant a link there during the build.
//
//   DIRECTORY/0, DIRECTORY/1, ...      the mounts
//   DIRECTORY/0/.ppmr-RANDOM/17        a file that has no name yet
//
// The mounts stay when this process ends, because another process may try the restore again.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "processes/files/file_archive.h"
#include "processes/files/segment_builder.h"

namespace ppmr {

// Returns the mount options that the copy of a tmpfs gets, as names and values. Leaves out "rw",
// "seclabel" and unknown options. Pure.
std::vector<std::pair<std::string, std::string>> options_of_tmpfs(const std::string& options);

// Returns whether a builder in this process or an earlier one has completed its work in
// `directory`.
bool is_tmpfs_built(const std::string& directory);

// Unmounts all tmpfs in a directory and removes the directory. Does nothing if it does not exist.
// Processes that use a mount keep it, without the names of deleted files (deleted_name.h).
void remove_built_tmpfs(const std::string& directory);

// Threads: one.
class TmpfsBuilder {
 public:
  enum class Mounts { kRefused, kAllowed };
  // apply() creates the directory at the first mount, or at the end.
  explicit TmpfsBuilder(std::string directory, Mounts mounts = Mounts::kAllowed)
      : directory_(std::move(directory)), may_mount_(mounts == Mounts::kAllowed) {}

  // Applies the next record; the parts must be complete and in their order. Errors: EPROTO for a
  // record that makes no sense here; ENOSPC if memory is short; EPERM for a mount that is refused;
  // of the file system.
  Status apply(const FileRecord& record);
  // Returns whether apply() has applied the last part.
  bool is_complete() const { return is_complete_; }
  // Returns the shared memory among the records. Call it when is_complete() returns true. Unlike
  // the mounts, a shared memory ends with its last descriptor.
  std::vector<BuiltSegment> take_segments() { return segments_.take(); }

 private:
  struct Built {
    std::string path;  // of the mount
    std::string options;
    UniqueFd root;
    UniqueFd unnamed;  // the directory of files without a name
    std::string unnamed_name;
    std::set<uint64_t> files;  // numbers of the files without a name
    bool is_named = false;
  };
  struct Level {
    UniqueFd directory;
    FileAttributes attributes;
  };
  Status on(const file_record::Part& part);
  Status on(const file_record::Tmpfs& tmpfs);
  Status on(const file_record::Size& size);
  Status on(const file_record::Data& data);
  Status on(const file_record::Hole& hole);
  Status on(const file_record::Drop& drop);
  Status on(const file_record::Tree& tree);
  Status on(const file_record::Entry& entry);
  Status on(const file_record::Link& link);
  Status on(const file_record::Leave& leave);
  Status on(const file_record::End& end);
  Status on(const file_record::Segment& segment);
  template <typename Content>
  Status on_content(const Content& content);

  // Opens a file without a name, for writing. The descriptor is valid until the next call.
  Result<int> open_unnamed(uint32_t tmpfs, uint64_t number);
  Status make_directory() const;
  Status name_file(const file_record::Entry& entry);
  // Returns the path of a name in the current directory, below the root of its tmpfs.
  std::string path_in_tmpfs(const std::string& name) const;
  // Returns the path of a name in the current directory, for an error.
  std::string full_path(const std::string& name) const;
  Status finish();

  std::string directory_;
  bool may_mount_;
  SegmentBuilder segments_;
  std::map<uint32_t, Built> built_;
  std::pair<uint32_t, uint64_t> opened_{0, 0};
  UniqueFd open_;  // the file `opened_`
  uint64_t parts_ = 0;
  bool in_part_ = false;
  bool is_complete_ = false;
  // The tree that gets its names now.
  Built* naming_ = nullptr;
  std::vector<Level> levels_;
  std::map<uint64_t, std::string> first_names_;  // paths from the root, for further names
  std::vector<std::string> path_;
};

}  // namespace ppmr
