// The requests to the daemon of a mount, one struct each (base/json_message.h). README.md in this
// folder says what they do and what the answers hold. The times in requests come from other
// processes, so the daemon limits them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/json_message.h"

namespace ppmr::request {

using Milliseconds = std::chrono::milliseconds;

struct Status {
  static constexpr const char* kName = "status";
  template <typename F>
  void fields(F&&) {}
};

struct Drain {
  static constexpr const char* kName = "drain";
  bool on = true;
  template <typename F>
  void fields(F&& field) {
    field.may_lack("on", on);
  }
};

// Seals a checkpoint. A source ignores `timeout`, because its session has a time limit.
struct Commit {
  static constexpr const char* kName = "commit";
  std::string checkpoint;
  std::optional<Milliseconds> timeout;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint);
    field.may_lack("timeout_ms", timeout);
  }
};

struct Stay {
  static constexpr const char* kName = "stay";
  template <typename F>
  void fields(F&&) {}
};

struct DeferErrors {
  static constexpr const char* kName = "defer-errors";
  std::string checkpoint;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint);
  }
};

struct WaitForPeer {
  static constexpr const char* kName = "wait-for-peer";
  std::string checkpoint;
  Milliseconds timeout{0};
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint), field("timeout_ms", timeout);
  }
};

// Comes with one descriptor: the bundle.
struct AddFiles {
  static constexpr const char* kName = "add-files";
  std::string checkpoint;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint);
  }
};

// Comes with two descriptors: the sockets of a page reader.
struct SendMemory {
  static constexpr const char* kName = "send-memory";
  static constexpr const char* kUntilRead = "read";
  static constexpr const char* kUntilArrived = "arrived";
  std::string checkpoint;
  uint64_t memory_bytes = 0;
  uint64_t file_offset = 0;
  std::vector<std::pair<uint64_t, uint64_t>> first;  // offset and bytes of parts to send first
  std::string until = kUntilArrived;
  std::optional<Milliseconds> reader_timeout;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint), field("memory_bytes", memory_bytes);
    field.may_lack("file_offset", file_offset);
    field.may_lack("first", first);
    field.may_lack("until", until);
    field.may_lack("reader_timeout_ms", reader_timeout);
  }
};

struct Wait {
  static constexpr const char* kName = "wait";
  static constexpr const char* kComplete = "complete";
  static constexpr const char* kSealed = "sealed";
  static constexpr const char* kKept = "kept";
  std::string checkpoint;
  std::string owner;  // empty: any owner
  std::string until = kSealed;
  std::optional<Milliseconds> timeout;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint);
    field.may_lack("owner", owner);
    field.may_lack("until", until);
    field.may_lack("timeout_ms", timeout);
  }
};

struct Remove {
  static constexpr const char* kName = "remove";
  std::string checkpoint;
  std::string owner;  // empty: any owner
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint);
    field.may_lack("owner", owner);
  }
};

struct Bundle {
  static constexpr const char* kName = "bundle";
  std::string checkpoint;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint);
  }
};

// Comes with a descriptor for each element of `inodes`.
struct HoldMemory {
  static constexpr const char* kName = "hold-memory";
  std::string checkpoint;
  std::string owner;
  std::vector<uint64_t> inodes;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint), field("owner", owner), field("inodes", inodes);
  }
};

struct HeldMemory {
  static constexpr const char* kName = "held-memory";
  std::string checkpoint;
  std::string owner;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint), field("owner", owner);
  }
};

struct Promise {
  static constexpr const char* kName = "promise";
  std::string checkpoint;
  uint64_t bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint), field("bytes", bytes);
  }
};

struct Lend {
  static constexpr const char* kName = "lend";
  std::string checkpoint;
  std::string file;  // empty: the checkpoint is a file
  uint64_t offset = 0;
  bool arrived = false;
  int loan = -1;  // the loan of an earlier answer; -1: a new loan
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint), field("file", file);
    field.may_lack("offset", offset);
    field.may_lack("arrived", arrived);
    field.may_lack("loan", loan);
  }
};

// Reports that a supervisor has refused to restore a checkpoint.
struct NoteRefusal {
  static constexpr const char* kName = "note_refusal";
  std::string checkpoint;
  int process = 0;
  std::string peer;
  std::string reason;
  template <typename F>
  void fields(F&& field) {
    field("checkpoint", checkpoint), field("process", process), field("peer", peer),
        field("reason", reason);
  }
};

// The page faults of a restored tree, as its pager writes them (FaultTimes).
struct PageFaults {
  std::vector<uint64_t> buckets;
  double sum_s = 0;
  template <typename F>
  void fields(F&& field) {
    field("buckets", buckets), field("sum_s", sum_s);
  }
};

// Reports the outcome of a migration (source) or a restart (target) that another process ran.
// daemon/metrics counts it.
struct NoteOutcome {
  static constexpr const char* kName = "note_outcome";
  std::string result;
  std::map<std::string, std::vector<double>> seconds;  // key: the phase
  std::optional<PageFaults> page_faults;
  template <typename F>
  void fields(F&& field) {
    field("result", result);
    field.may_lack("seconds", seconds);
    field.may_lack("page_faults", page_faults);
  }
};

// Reports the migrations of the mount that are not over.
struct NoteOpen {
  static constexpr const char* kName = "note_open";
  struct Migration {
    std::string id;
    std::string state;
    int64_t since_ns = 0;
    template <typename F>
    void fields(F&& field) {
      field("id", id), field("state", state), field("since_ns", since_ns);
    }
  };
  std::vector<Migration> migrations;
  template <typename F>
  void fields(F&& field) {
    field("migrations", migrations);
  }
};

// Reports the newest epoch of a process that `ppmr protect` protects.
struct NoteEpoch {
  static constexpr const char* kName = "note_epoch";
  std::string process;  // the name under which it is protected
  int64_t pid = 0;
  std::string program;
  int64_t epoch = 0;
  int64_t frozen_ns = 0;
  int64_t pause_ms = 0;
  int64_t bytes = 0;
  int64_t sent_bytes = 0;
  int64_t every_ms = 0;
  // The newest epoch on the partner's disk. 0: none. -1: the partner keeps none on a disk.
  int64_t disk_epoch = -1;
  int64_t disk_frozen_ns = 0;
  std::string disk_error;  // of the last attempt to write to the disk; empty: it succeeded
  template <typename F>
  void fields(F&& field) {
    field("process", process), field("pid", pid), field("program", program), field("epoch", epoch),
        field("frozen_ns", frozen_ns), field("pause_ms", pause_ms), field("bytes", bytes),
        field("sent_bytes", sent_bytes), field("every_ms", every_ms),
        field("disk_epoch", disk_epoch), field("disk_frozen_ns", disk_frozen_ns),
        field("disk_error", disk_error);
  }
};

// Reports that a process is no longer protected.
struct NoteProtectionEnd {
  static constexpr const char* kName = "note_protection_end";
  std::string process;
  template <typename F>
  void fields(F&& field) {
    field("process", process);
  }
};

using ToSource = std::variant<Status, Drain, Commit, Stay, DeferErrors, WaitForPeer, AddFiles,
                              SendMemory, NoteOutcome, NoteOpen, NoteEpoch, NoteProtectionEnd>;
using ToTarget = std::variant<Status, Drain, Commit, Wait, Remove, Bundle, HoldMemory, HeldMemory,
                              Promise, Lend, NoteRefusal, NoteOutcome, NoteOpen>;

}  // namespace ppmr::request
