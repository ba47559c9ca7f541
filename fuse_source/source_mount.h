// The source mount as a whole: the pool, the session with the target, the tree, and what the
// operations need of them. One operations file per group of FUSE calls fills the table.
//
// Locks: changes_ orders changes of names with the messages about them and may be held while a
// message waits for room, or for the target. A close must not wait for that: it takes only
// attribute_changes_, inside of changes_, which orders attributes and the size with the messages
// about them. The tree's mutex is held for look-ups only, so `ls` never waits.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "buffer_pool/buffer_pool.h"
#include "fuse_source/quiet_flusher.h"
#include "fuse_source/slot_buffers.h"
#include "fuse_source/source_tree.h"
#include "mount/command_line/transport_option.h"
#include "mount/fuse/request_loop.h"
#include "rdma_stream/connection/security.h"
#include "rdma_stream/session/sender.h"

namespace ppmr {

struct SourceOptions {
  std::string mountpoint;
  std::string target_address;  // empty with discard
  std::shared_ptr<const Security> security = Security::none();
  bool discard = false;
  bool allow_other = false;
  size_t chunk_size_bytes = size_t{1} << 20;
  size_t pool_size_bytes = size_t{64} << 20;
  TransportOptions transport;
  SenderOptions sender;  // but for its transport
};

struct CommitReport {
  uint64_t files = 0;
  uint64_t bytes = 0;
};

// Threads: any, but for serve() (one).
class SourceMount {
 public:
  // Connects to the target; the mount itself comes with serve(). Errors: of the pool's sizes, of
  // the connection.
  static Result<std::unique_ptr<SourceMount>> create(SourceOptions options);
  ~SourceMount();

  // Mounts (`mounted` is called then) and serves until unmounted or stopped; seals the checkpoints
  // in which nothing is open any more.
  Status serve(const std::string& source_label, const std::function<void()>& mounted);
  void stop();

  // ---- Changes of names, told to the target (changes.cc). Errors are what the caller gets.
  Result<SourceNodePointer> make(uint64_t parent, const std::string& name, wire::NodeType type,
                                 const wire::Attributes& attributes,
                                 const std::string& link_target);
  Status remove(uint64_t parent, const std::string& name, bool directory);
  Status rename(uint64_t parent, const std::string& name, uint64_t new_parent,
                const std::string& new_name, unsigned int flags);

  // ---- Files (files.cc).
  Status opened(const SourceNodePointer& node, bool for_writing);
  void released(const SourceNodePointer& node, bool for_writing);
  // Brings `bytes`, which arrived in the present request, into the stream. The caller answers its
  // writer and then announces what was cut.
  Status write(const SourceNodePointer& node, std::span<const std::byte> bytes, uint64_t offset,
               const Interrupted& interrupted, CutChunks& cut);
  Status drain(const SourceNodePointer& node, const Interrupted& interrupted);
  // At most `bytes_max`, fewer only at the end of the file.
  Result<std::vector<std::byte>> read(const SourceNodePointer& node, uint64_t offset,
                                      size_t bytes_max, const Interrupted& interrupted);
  Status truncate(const SourceNodePointer& node, uint64_t size_bytes,
                  const Interrupted& interrupted);
  Status punch_hole(const SourceNodePointer& node, uint64_t offset, uint64_t length_bytes,
                    const Interrupted& interrupted);
  Status set_attributes(const SourceNodePointer& node, const wire::Attributes& attributes);

  // ---- Checkpoints (commit.cc).
  Result<CommitReport> commit(const std::string& name);

  nlohmann::json status();  // source_status.cc
  wire::Space space();
  SourceTree& tree() { return tree_; }
  SlotBuffers& buffers() { return buffers_; }
  size_t chunk_size_bytes() const { return options_.chunk_size_bytes; }

 private:
  // What a session's thread calls. Sessions die with the last of their checkpoints, while the mount
  // is being taken apart: it closes the gate before.
  struct EventGate {
    std::mutex mutex;
    SourceMount* mount = nullptr;  // null: closed; guarded by mutex
  };

  struct Parts {  // what can fail to be made
    std::unique_ptr<BufferPool> pool;
    std::unique_ptr<Connector> connector;
    std::unique_ptr<Fabric> fabric;
    std::unique_ptr<VerbsSource> verbs;
  };
  SourceMount(SourceOptions options, Parts parts);
  static Status open_verbs(SourceOptions& options, Parts& parts);

  // Changes of names.
  Result<std::shared_ptr<Outlet>> connect();
  Result<std::shared_ptr<Outlet>> live_outlet_for_claim();
  std::shared_ptr<Outlet> present_outlet();
  Result<SourceNodePointer> directory(uint64_t id);
  Status check_writable(const SourceCheckpoint& checkpoint);
  static tl::unexpected<Error> sealed_failure();
  void unlink(const SourceNodePointer& node);

  // Files.
  Result<SlotLease> wait_for_slot(const SourceCheckpoint& checkpoint,
                                  const Interrupted& interrupted);
  // Told only if nobody has opened the file for writing since: of so many writers the last.
  void close_for_writing(const SourceNodePointer& node, uint64_t writers_so_far);
  void give_up(const SourceCheckpoint& checkpoint, const Error& error);

  // Checkpoints.
  Result<CommitReport> seal(const SourceNodePointer& top);
  Status await_writers(const SourceNodePointer& top);
  void commit_what_is_closed(bool unmounted);
  void request_commit(uint64_t top_node);
  void serve_commit_requests();
  void checkpoint_removed(uint64_t top_node);

  const SourceOptions options_;
  const std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();
  const std::unique_ptr<BufferPool> pool_;
  const std::unique_ptr<Connector> connector_;
  const std::unique_ptr<Fabric> fabric_;
  const std::unique_ptr<VerbsSource> verbs_;  // null: bytes travel over TCP
  SlotBuffers buffers_;

  std::atomic<bool> stopping_ = false;
  std::mutex changes_;
  std::mutex attribute_changes_;
  const std::shared_ptr<EventGate> events_;
  std::mutex outlet_mutex_;
  std::shared_ptr<Outlet> outlet_;  // of the present session; guarded by outlet_mutex_

  SourceTree tree_;
  std::condition_variable writer_closed_;  // with the tree's mutex

  std::mutex commits_mutex_;
  std::condition_variable commit_requested_;
  std::queue<uint64_t> commit_requests_;  // of top nodes; guarded by commits_mutex_
  bool commits_stopping_ = false;         // guarded by commits_mutex_

  std::mutex loop_mutex_;
  RequestLoop* loop_ = nullptr;  // while serving; guarded by loop_mutex_

  // Threads: end before what they use.
  QuietFlusher flusher_;
  std::thread committer_;
};

// The table of FUSE operations of a source mount; their userdata is the SourceMount.
const fuse_lowlevel_ops& source_operations();

}  // namespace ppmr
