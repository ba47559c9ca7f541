// Copies the files in memory of a tree in rounds, while the tree runs: the content of regular files
// first, and what has changed since in each further round. The last round, with the tree frozen,
// also lists all names and attributes.
//
//   status of a file as it was        nothing to read: it takes microseconds
//   changed, or written unseen        read again, and only pages with another digest are sent
//   (unseen_writes.h)
//
// Rejected: tar of the changed files. It sends a file of 1 GiB for one changed byte, and does not
// notice writes through mappings. Also rejected: fanotify and inotify, which do not report writes
// through mappings either.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "processes/files/segment_rounds.h"
#include "processes/files/sent_content.h"
#include "processes/files/tmpfs_mounts.h"
#include "processes/files/unseen_writes.h"

namespace ppmr {

// A file's status, when its content was sent.
struct FileStatus {
  uint64_t size_bytes = 0;
  int64_t change_ns = 0;     // last change of the content
  int64_t status_ns = 0;     // last change of the content or the attributes
  int64_t looked_ns = 0;     // when this status was read
  bool is_in_doubt = false;  // writes may leave its times unchanged
  bool operator==(const FileStatus&) const = default;
};

// Returns whether the content of a file may differ from what was sent.
bool may_have_changed(const FileStatus& sent, const FileStatus& now);

// Threads: one.
class FileRounds {
 public:
  using Sink = SentContent::Sink;
  explicit FileRounds(std::vector<PrivateTmpfs> all) : all_(std::move(all)), unseen_writes_(all_) {}

  bool is_empty() const { return all_.empty(); }
  const std::vector<PrivateTmpfs>& all() const { return all_; }

  // Passes what has changed to the sink, and returns how many bytes that was. Leaves out files that
  // disappear meanwhile. Errors: of the sink and of the file system; ELOOP for directories that are
  // nested deeper than kFileDepthMax.
  Result<uint64_t> send_round(pid_t root, const Sink& sink) { return send(root, sink, false); }
  // Does the same as send_round(), and also sends all names, including those of `deleted`. The
  // caller has frozen the tree.
  Result<uint64_t> send_last(pid_t root, const Sink& sink, std::vector<DeletedFile> deleted = {});

 private:
  struct SentFile {
    SentContent content;  // empty for a file that is not regular
    FileStatus status;
    uint64_t round = 0;     // the last round that has seen the file
    bool is_named = false;  // send_last() has sent a name of it
  };
  class Walk;

  Result<uint64_t> send(pid_t root, const Sink& sink, bool is_last);

  std::vector<PrivateTmpfs> all_;
  std::vector<DeletedFile> deleted_;
  UnseenWrites unseen_writes_;
  std::map<std::pair<dev_t, uint64_t>, SentFile> sent_;  // key: device, inode
  uint64_t next_number_ = 1;
  uint64_t round_ = 0;
};

}  // namespace ppmr
