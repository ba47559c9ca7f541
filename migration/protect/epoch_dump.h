// One epoch at the source: rounds while the tree runs, a short freeze, and the rest while it runs
// on.
//
//   running   rounds                          the pages written since the epoch before
//   frozen    description, page index         CRIU and LiveMemory
//             the last written pages          into the pool of the source's daemon
//   running   the rest travels, both checkpoints are sealed
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "migration/epochs/epoch_state.h"
#include "migration/protect/criu_session.h"
#include "migration/source/dump_images.h"
#include "migration/source/memory_file.h"
#include "processes/carried/carried_state.pb.h"
#include "processes/memory/live_memory.h"
#include "restart_loader/containers/container_port.h"

namespace ppmr {

struct SentEpoch {
  SealedEpoch epoch;  // without its number
  std::string checkpoint;
  std::chrono::nanoseconds fixed_part{0};  // the pause without the time for its pages
  std::string memory;                      // name of the checkpoint with the pages of this epoch
  uint64_t memory_offset = 0;              // where they begin in the memory file of the run
};

// Where an epoch goes.
struct EpochDestination {
  MountEntry mount;
  // A file for the memory, at this node; empty: the epoch goes to the mount. With a file, nothing
  // goes to a mount, and nothing is sealed. The description stays in images() as long as the dump
  // exists.
  std::string local_file;
};

struct EpochOptions {
  std::string criu;
  EpochDestination to;
  std::string checkpoint;  // a name that no other epoch has
  std::string work;        // directory for logs and page indexes
  ProcessIdentity root;
  std::string container;  // of runc; its first process is the root; empty: none
  LiveLimits limits;
  std::vector<std::string> criu_options;
  std::chrono::milliseconds seal_patience{0};
  std::function<Status()> go_on;  // called after each round; an error ends the epoch
  std::function<void(const std::string&)> on_warning;  // a warning for the user
  // Used if the tree is one part of a whole whose parts are frozen together; empty otherwise.
  ContainerPort port;                     // cut while CRIU reads the connections and holds the tree
  std::function<Status()> before_freeze;  // the tree runs, and the rounds are over
  std::function<Status()> when_captured;  // the tree stands still, and the epoch is in the pool
  // If it is set, the epoch is sealed while the tree stands still. The tree runs on when the
  // function returns.
  std::function<Status(const SentEpoch&)> while_held;
};

// Returns how long CRIU may be silent while it holds a tree that should stand still for
// `max_pause`. CRIU is silent while it copies shared memory. Pure.
std::chrono::milliseconds criu_patience(std::chrono::nanoseconds max_pause);

// Threads: one.
class EpochDump {
 public:
  // `live`: the memory of the tree for the whole run of epochs. If an epoch fails, no node keeps
  // its pages: call live.take_back().
  EpochDump(LiveMemory& live, EpochOptions options)
      : live_(live), options_(std::move(options)), memory_offset_(live.sent_bytes()) {}
  // Removes the names of the checkpoints at the source. The target keeps what is sealed.
  ~EpochDump();

  // Returns when the target has verified the epoch and the tree runs on. The tree also runs on
  // after an error. Errors: those of copy_in_rounds(), CriuSession::dump() and of the daemon.
  Result<SentEpoch> send();
  // Returns the directory with the description. Valid after send() to a local destination.
  std::string images() const { return description_->path(); }

 private:
  Status create_checkpoint();
  Status prepare();
  Status prepare_criu();
  Status freeze();
  Result<DumpTimes> dump();
  bool is_container() const { return !options_.container.empty(); }
  Status while_frozen();
  Status write_frozen_state();
  Status add_description();
  // Returns when the target has verified the epoch.
  Status seal();
  SentEpoch describe() const;
  bool is_local() const { return !options_.to.local_file.empty(); }
  std::string top() const { return options_.to.mount.mountpoint + "/" + options_.checkpoint; }

  LiveMemory& live_;
  const EpochOptions options_;
  const uint64_t memory_offset_;
  std::optional<MemoryFile> memory_;
  std::optional<CriuSession> criu_;
  std::optional<DumpImages> description_;
  std::optional<RuncDump> runc_;
  std::optional<carried::Inherited> before_;  // as the tasks had it while they ran
  FrozenMemoryIndex index_;
  DumpTimes times_;
  std::chrono::nanoseconds sending_{0};  // how long the tree stood still for its memory
};

}  // namespace ppmr
