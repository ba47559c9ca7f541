// Dumps one tree into the source mount and seals its checkpoint. After the dump the post-dump hook
// holds the tree, and the record alone decides whether the tree continues or is killed.
#pragma once

#include <functional>
#include <future>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/unique_fd.h"
#include "migration/records/record_store.h"
#include "migration/relay/held_criu.h"
#include "migration/source/dump_images.h"
#include "migration/source/file_parts.h"
#include "migration/source/live_rounds.h"
#include "migration/source/memory_file.h"
#include "mount/mount_table.h"
#include "processes/memory/live_memory.h"
#include "restart_loader/criu/criu_process.h"

namespace ppmr {

struct TreeDumpOptions {
  std::string criu;
  MountEntry mount;
  std::string id;
  size_t tree = 0;
  TreeRecord record;
  std::vector<std::string> criu_options;
  MovePlan plan;
  std::optional<LiveLimits> live_limits;  // nullopt: no rounds
  std::set<pid_t> rdma_users;             // see LiveMemory::expect_release_of()
  std::function<void(unsigned round, uint64_t bytes)> on_round_begins;
  std::function<void(unsigned round, uint64_t bytes)> on_round;
  std::function<void()> on_freeze;  // CRIU is about to freeze the tree
  // Called after a round of files in memory and shared memory, with the bytes that it has sent.
  std::function<void(uint64_t bytes)> on_files_round;
  // A sentence for the user: why the move is not live, or does not keep its promise.
  std::function<void(const std::string&)> on_warning;
  std::chrono::milliseconds seal_patience{0};
};

// Threads: one.
class TreeDump {
 public:
  TreeDump(const RecordStore& store, TreeDumpOptions options);
  ~TreeDump();

  // Copies memory in rounds while the tree runs. Call dump_and_seal() next.
  Status copy();
  // Returns when the target has verified the checkpoint. With post-copy, does not wait for the
  // memory. On an error the tree may still be frozen: see wait_for_end().
  Result<SealedTree> dump_and_seal();
  // With post-copy, after dump_and_seal(): returns when the target has verified the memory. Until
  // then the frozen tasks must stay.
  Result<SealedTree> finish_memory() { return memory_sent_.get(); }
  // Blocks until CRIU has ended. CRIU ends when the record is aborted or committed.
  void wait_for_end();
  // Call after wait_for_end(). Removes the checkpoint's names at the source only: the target keeps
  // the checkpoint if it is sealed.
  void remove_checkpoint();

  const std::string& work_directory() const { return work_; }

 private:
  Status make_directories();
  Status check_daemon() const;
  Status check_not_over() const;
  Status await_resumed() const;
  Status find_files();
  Status copy_files();
  Status catch_up_files();
  Status copy_live();
  // If a failure of a round leaves the tree as it was, all memory is sent while it is frozen.
  Status or_send_frozen(const Status& copied);
  Status may_send_frozen(const std::string& why) const;
  Status copy_rounds();
  Result<LiveLimits> present_limits() const;
  Status copy_round();
  Status catch_up();
  bool is_container() const { return !options_.record.container.name.empty(); }
  Status note_state_before() const;
  Status prepare();
  Status start();
  std::string memory_name() const { return memory_checkpoint(options_.plan, options_.record); }
  bool describes_in_memory() const;
  Status add_description(const PageIndex& index);
  bool has_room_for(uint64_t sent_bytes, uint64_t rest_bytes) const;
  Status start_anew();
  Result<FrozenMemoryIndex> index_frozen_memory();
  Result<SealedTree> send_and_seal_memory(const FrozenMemoryIndex& index);
  Result<SealedTree> seal(const std::string& checkpoint) const {
    return seal_checkpoint(options_.mount, checkpoint, options_.seal_patience);
  }
  Result<SealedTree> seal_images();
  CriuProcess* criu() { return held_ ? &held_->process() : runc_.get(); }
  void wait_and_process(std::vector<pollfd> fds = {});
  void wait_until(const std::function<bool()>& is_done);
  void unblock_criu();
  bool is_abandoned() const;
  Result<std::vector<std::string>> checkpoint_command(const std::string& images) const;
  Result<bool> await_held();

  const RecordStore& store_;
  const TreeDumpOptions options_;
  std::string work_;
  // The images that still have to be added to the checkpoint; nullopt: all of them are in it.
  std::optional<DumpImages> description_;
  std::optional<MemoryFile> memory_;  // nullopt: the images include the memory
  std::future<Result<SealedTree>> memory_sent_;
  std::optional<FileParts> files_;  // none: the tree has neither files in memory nor shared memory
  std::string top_;         // the checkpoint's path in the mount; empty until the directory exists
  FrozenWork frozen_work_;  // as it was before the rounds
  LiveMemory live_;         // the rounds, and the frozen tree
  std::vector<Round> rounds_;
  std::chrono::steady_clock::time_point copied_at_;  // end of the last round before dump_and_seal()
  std::optional<HeldCriu> held_;
  std::unique_ptr<CriuProcess> runc_;  // for a container, instead of held_
};

}  // namespace ppmr
