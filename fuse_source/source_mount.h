// The source mount: the pool, the session with the target, the tree, and what the FUSE operations
// require of them. source_names.cc, source_bytes.cc, source_files.cc, source_memory.cc,
// source_seal.cc and source_control.cc define the groups of members below.
//
// Locks: changes_ puts changes of names and the messages about them in the same order. A thread
// that holds it may block on a full outbox or on the target. A close must not wait for such a
// thread, so it takes only attribute_changes_, which puts changes of attributes and sizes and the
// messages about them in the same order. A thread that needs both locks takes changes_ first. The
// tree's mutex is held for look-ups and updates only, so `ls` never blocks.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "buffer_pool/buffer_pool.h"
#include "daemon/control/requests.h"
#include "daemon/data_daemon/data_daemon.h"
#include "daemon/metrics/open_migrations.h"
#include "daemon/metrics/outcome_tally.h"
#include "daemon/metrics/protected_processes.h"
#include "fuse_source/frozen_memory.h"
#include "fuse_source/memory_transfers.h"
#include "fuse_source/quiet_flusher.h"
#include "fuse_source/seal_requests.h"
#include "fuse_source/slot_buffers.h"
#include "fuse_source/source_options.h"
#include "fuse_source/source_tree.h"
#include "fuse_source/target_sessions.h"
#include "mount/front_end.h"
#include "mount/image_bundle.h"

namespace ppmr {

struct CommitReport {
  uint64_t files = 0;
  uint64_t bytes = 0;
};

// Threads: any, except for serve() (one).
class SourceMount final : public FrontEnd, public ServedMount {
 public:
  // Connects to the target; serve() mounts. `connector` connects for a process that has dropped its
  // rights; by default create() makes a connector. Errors: those of creating the pool and of the
  // connection; EAGAIN when a thread cannot be started.
  static Result<std::unique_ptr<SourceMount>> create(
      SourceOptions options, std::unique_ptr<Connector> connector = nullptr);
  ~SourceMount() override;

  // ---- ServedMount. serve() seals the checkpoints in which nothing is open before it returns.
  Status serve(const std::function<void()>& mounted) override;
  void stop() override;
  nlohmann::json answer(const nlohmann::json& request, PassedDescriptors& passed) override;
  void stop_answering() override {}  // serve() has ended what answer() waits for
  const OutcomeTally& outcomes() const override { return migrations_; }

  // ---- Changes of names, which are sent to the target (source_names.cc).
  // The process that makes the change gets the error.
  Result<SourceNodePointer> make(uint64_t parent, const std::string& name, wire::NodeType type,
                                 const wire::Attributes& attributes,
                                 const std::string& link_target);
  Status remove(uint64_t parent, const std::string& name, bool directory);
  Status rename(uint64_t parent, const std::string& name, uint64_t new_parent,
                const std::string& new_name, unsigned int flags);

  // ---- Files (source_bytes.cc).
  // Errors: EROFS for a writer of a sealed checkpoint; ESTALE when the file is unlinked and no
  // handle of it is open.
  Status opened(const SourceNodePointer& node, bool for_writing, bool is_new = false);
  void released(const SourceNodePointer& node, bool for_writing);
  // Puts `bytes`, which the calling worker has received, into the stream. Blocks while the pool is
  // full. Returns the number of bytes taken, which is less than the whole only if very many writers
  // are blocked. The caller replies to the writing process and then announces the chunks in `cut`.
  Result<size_t> write(const SourceNodePointer& node, std::span<const std::byte> bytes,
                       uint64_t offset, const Interrupted& interrupted, CutChunks& cut);
  // Blocks until a reader at the target sees all writes, truncations and holes up to now.
  Status drain(const SourceNodePointer& node, const Interrupted& interrupted);
  // Returns `bytes_max` bytes, or fewer at the end of the file.
  Result<std::vector<std::byte>> read(const SourceNodePointer& node, uint64_t offset,
                                      size_t bytes_max, const Interrupted& interrupted);
  Status truncate(const SourceNodePointer& node, uint64_t size_bytes,
                  const Interrupted& interrupted);
  Status punch_hole(const SourceNodePointer& node, uint64_t offset, uint64_t length_bytes,
                    const Interrupted& interrupted);
  Status set_attributes(const SourceNodePointer& node, const wire::Attributes& attributes);

  // From now on until the checkpoint is sealed or has failed, its session tolerates a target that
  // is silent for up to `patience`. A migration calls this when it needs both nodes. Errors:
  // ENOENT.
  Status wait_for_peer(const std::string& name, std::chrono::milliseconds patience);

  // ---- Files in a bundle (source_files.cc). Makes and writes these files in the checkpoint
  // `name`. The files belong to the checkpoint's owner, and other users cannot read them. Errors:
  // ENOENT; those of make() and write(). After an error some of the files exist; after an error of
  // write() the checkpoint has failed.
  Status add_files(const std::string& name, const ImageBundle& bundle);

  // ---- Memory of processes (source_memory.cc). Writes the memory to the checkpoint `name`, which
  // is one file; each round of a live move makes one call. First sends the bytes that readers at
  // the target wait for. Errors: ENOENT; EBUSY when another call sends to the same checkpoint;
  // those of the functions in `memory` and of write(). After an error other than ENOENT and EBUSY
  // the checkpoint has failed.
  Status send_memory(const std::string& name, const FrozenMemory& memory);
  // Called when readers at the target wait for bytes of a file. send_memory() sends these bytes
  // first. Any values are allowed. Never blocks.
  void bytes_wanted(uint64_t node, uint64_t offset, uint64_t length);

  // ---- Checkpoints (source_seal.cc).
  Result<CommitReport> commit(const std::string& name);
  // From now on close(2) in the checkpoint does not wait and reports no errors: the seal reports
  // them. Errors: ENOENT.
  Status defer_errors(const std::string& name);

  // Returns the identity that the target has proved (PeerIdentity::text()).
  std::string target_identity() { return sessions_->present()->counters().security; }

  // Returns whether a signal is killing this process.
  bool is_dying(pid_t process) const { return options_.helper->is_dying(process); }

  SourceTree& tree() { return tree_; }
  SlotBuffers& buffers() { return buffers_; }
  size_t chunk_size_bytes() const { return options_.chunk_size_bytes; }

  // ---- FrontEnd.
  Result<mode_t> mode_of(uint64_t inode) override;
  Result<ListDirectory> open_directory(uint64_t inode) override;
  void forget(uint64_t inode, uint64_t lookups) noexcept override;
  wire::Space space() override;

 private:
  SourceMount(SourceOptions options, std::unique_ptr<BufferPool> pool,
              std::unique_ptr<TargetSessions> sessions);
  SenderEvents events();

  // Changes of names.
  Result<SourceNodePointer> directory(uint64_t id);
  Status check_writable(const SourceCheckpoint& checkpoint);
  static tl::unexpected<Error> sealed_failure();
  void unlink(const SourceNodePointer& node);
  void forget_file(const SourceNodePointer& node);

  // Files.
  Result<SlotLease> wait_for_slot(const SourceCheckpoint& checkpoint,
                                  const Interrupted& interrupted);
  Status drain_chunks(const SourceNodePointer& node, const Interrupted& interrupted);
  // Sends the close, unless another writer has opened the file since the caller read
  // `writers_so_far`.
  void close_for_writing(const SourceNodePointer& node, uint64_t writers_so_far);
  void give_up(const SourceCheckpoint& checkpoint, const Error& error);
  void set_patience(SourceCheckpoint& checkpoint, std::chrono::milliseconds patience);

  nlohmann::json status();
  Status stay() const;
  nlohmann::json status_of(const SourceNode& top);

  // Files in a bundle.
  Status add_files(const request::AddFiles& request, const std::vector<UniqueFd>& received);
  Status add_file(const SourceNode& directory, const std::string& name,
                  std::span<const std::byte> bytes);

  // Memory.
  Status send_memory(const request::SendMemory& request, std::vector<UniqueFd> received);
  // Returns the number of written bytes of a file, for the status.
  uint64_t written_bytes(const SourceNode& node);

  // Checkpoints.
  Result<CommitReport> seal(const SourceNodePointer& top);
  Status await_writers(const SourceNodePointer& top);
  void seal_closed_checkpoints(bool unmounted);
  void serve_seal_request(uint64_t top_node);
  void checkpoint_removed(uint64_t top_node);

  const SourceOptions options_;
  const std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();
  const std::unique_ptr<BufferPool> pool_;
  const std::unique_ptr<TargetSessions> sessions_;
  SlotBuffers buffers_;

  std::atomic<bool> draining_ = false;  // make() refuses new checkpoints
  std::atomic<bool> stopping_ = false;
  Mutex changes_;
  Mutex attribute_changes_;
  OpenMigrations open_migrations_;
  ProtectedProcesses protected_;
  OutcomeTally migrations_{migrations_tally()};

  SourceTree tree_;
  CondVar writer_closed_;  // used with the tree's mutex

  Mutex patience_mutex_;  // serialises set_patience()

  MemoryTransfers transfers_;

  // Declared last: the threads end before the members that they use.
  LentSlots lent_slots_;
  QuietFlusher flusher_;
  SealRequests seal_requests_;
};

// Returns the table of FUSE operations of a source mount. The userdata of its operations is the
// FrontEnd.
const fuse_lowlevel_ops& source_operations();

}  // namespace ppmr
