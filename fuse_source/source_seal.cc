// Sealing a checkpoint: the target verifies every byte, then compares the manifest (names, lengths,
// digests) with what arrived.
#include <algorithm>

#include "fuse_source/source_mount.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// The kernel sends the release of a file after close(2) has returned. A commit right after close(2)
// waits this long for the release.
constexpr std::chrono::seconds kWritersTimeout{5};
// A mount that ends stops waiting for a target that has released no slot for this long: the
// target's readers may have stopped.
constexpr std::chrono::seconds kStuckAtEnd{3};

wire::ManifestEntry manifest_entry(const SourceNode& node, uint64_t top_node) {
  wire::ManifestEntry entry;
  entry.checkpoint = top_node;
  entry.node = node.id;
  const auto parent = node.parent.lock();
  entry.parent = node.id == top_node ? 0 : parent->id;
  entry.type = node.type;
  entry.mode = node.attributes.mode;
  entry.name = node.name;
  if (node.type == wire::NodeType::kFile) {
    entry.size_bytes = node.writer->size_bytes();
    entry.digest = node.writer->stream().digest();
  }
  return entry;
}

tl::unexpected<Error> still_open_failure(const SourceNode& node) {
  return failure(EBUSY, "seal the checkpoint: '" + node.name +
                            "' is still open for writing: close it, then commit again");
}

}  // namespace

Result<CommitReport> SourceMount::commit(const std::string& name) {
  const SourceNodePointer top = tree_.child(tree_.root(), name);
  if (!top) return failure(ENOENT, "commit '" + name + "': no such checkpoint in this mount");
  return seal(top);
}

Status SourceMount::defer_errors(const std::string& name) {
  const SourceNodePointer top = tree_.child(tree_.root(), name);
  if (!top) return failure(ENOENT, "defer errors of '" + name + "': no such checkpoint here");
  top->checkpoint->defers_errors = true;
  return {};
}

Status SourceMount::wait_for_peer(const std::string& name, std::chrono::milliseconds patience) {
  const SourceNodePointer top = tree_.child(tree_.root(), name);
  if (!top)
    return failure(ENOENT, "wait for the target of '" + name + "': no such checkpoint here");
  set_patience(*top->checkpoint, patience);
  MutexLock lock(tree_.mutex());
  const bool sealed = top->checkpoint->state == CheckpointState::kSealed;
  lock.unlock();
  if (sealed) set_patience(*top->checkpoint, {});
  return {};
}

// A session waits for a silent target as long as the checkpoint with the longest patience requires.
void SourceMount::set_patience(SourceCheckpoint& checkpoint, std::chrono::milliseconds patience) {
  MutexLock lock(patience_mutex_);
  if (checkpoint.patience.exchange(patience) == patience) return;
  for (auto& top : tree_.tops()) {
    if (top->checkpoint->outlet == checkpoint.outlet) {
      patience = std::max(patience, top->checkpoint->patience.load());
    }
  }
  checkpoint.outlet->set_patience(patience);
}

Status SourceMount::await_writers(const SourceNodePointer& top) {
  const auto nodes = tree_.nodes_of(*top->checkpoint);
  auto still_open = [&]() -> SourceNodePointer {
    for (auto& node : nodes) {
      if (node->open_writers > 0) return node;
    }
    return nullptr;
  };
  MutexLock lock(tree_.mutex());
  const bool closed = writer_closed_.wait_for(tree_.mutex(), kWritersTimeout,
                                              [&] { return still_open() == nullptr || stopping_; });
  if (closed && still_open() == nullptr) return {};
  return still_open_failure(*still_open());
}

Result<CommitReport> SourceMount::seal(const SourceNodePointer& top) {
  SourceCheckpoint& checkpoint = *top->checkpoint;
  bool sealed = false;
  {
    MutexLock lock(tree_.mutex());
    sealed = checkpoint.state == CheckpointState::kSealed;
  }
  // A sealed checkpoint does not fail when its session ends: only its own error counts.
  const Status status = sealed ? checkpoint.error->status() : checkpoint.status();
  if (!status) return failure(status.error());
  if (auto closed = await_writers(top); !closed) return failure(closed.error());
  MutexLock changes(changes_);
  const auto nodes = tree_.nodes_of(checkpoint);
  {
    MutexLock lock(tree_.mutex());
    sealed = checkpoint.state == CheckpointState::kSealed;
    for (auto& node : nodes) {
      // Another process has opened the file again.
      if (node->open_writers > 0) return still_open_failure(*node);
    }
    if (!sealed) checkpoint.state = CheckpointState::kSealing;
  }
  auto set_state = [&](CheckpointState state) {
    MutexLock lock(tree_.mutex());
    checkpoint.state = state;
  };
  const auto began_at = std::chrono::steady_clock::now();
  const Interrupted is_stuck = [&] {
    const auto progress_at = std::max(began_at, pool_->last_release());
    return stopping_ && std::chrono::steady_clock::now() - progress_at > kStuckAtEnd;
  };
  CommitReport report;
  for (auto& node : nodes) {
    if (node->type != wire::NodeType::kFile) continue;
    ++report.files;
    report.bytes += node->writer->size_bytes();
    if (auto drained = node->writer->drain(is_stuck); !drained) {
      set_state(CheckpointState::kOpen);
      return failure(drained.error());
    }
  }
  if (sealed) return report;
  Outlet& outlet = *checkpoint.outlet;
  for (auto& node : nodes) {
    wire::ManifestEntry entry;
    {
      MutexLock lock(tree_.mutex());
      entry = manifest_entry(*node, checkpoint.top_node);
    }
    if (auto sent = outlet.send(entry); !sent) {
      set_state(CheckpointState::kOpen);
      return failure(sent.error());
    }
  }
  wire::Seal message;
  message.checkpoint = checkpoint.top_node;
  message.entry_count = nodes.size();
  if (auto answer = outlet.seal(message); !answer) {
    set_state(CheckpointState::kOpen);
    return failure(answer.error());
  }
  set_state(CheckpointState::kSealed);
  set_patience(checkpoint, {});
  return report;
}

// Runs when the mount ends: seals the complete checkpoints. A checkpoint with an open handle is
// incomplete, and fails at the target.
void SourceMount::seal_closed_checkpoints(bool unmounted) {
  if (options_.discard) return;
  for (auto& top : tree_.tops()) {
    bool open = false;
    for (auto& node : tree_.nodes_of(*top->checkpoint)) {
      // After an unmount no file is open, even if a FUSE_RELEASE has not arrived.
      if (unmounted) {
        if (node->open_writers > 0) close_for_writing(node, node->writers_so_far);
        MutexLock lock(tree_.mutex());
        node->open_writers = node->open_handles = 0;
      }
      open = open || node->open_handles > 0;
    }
    if (open || !top->checkpoint->status()) continue;
    if (auto sealed = seal(top); !sealed) {
      spdlog::warn("checkpoint '{}' is not sealed: {}", top->name, sealed.error().message);
    }
  }
}

// ---- Requests from the target -------------------------------------------------------------------

void SourceMount::serve_seal_request(uint64_t top_node) {
  const SourceNodePointer top = tree_.find_top(top_node);
  if (!top) return;
  const Status sealed = without_exceptions([&]() -> Status {
    auto report = seal(top);
    if (!report) return failure(report.error());
    return {};
  });
  if (sealed) return;
  // The result is ignored: when send() fails, the session has ended, and the target fails the
  // checkpoint.
  (void)without_exceptions([&] {
    spdlog::warn("commit '{}' at the target's request: {}", top->name, sealed.error().message);
    return top->checkpoint->outlet->send(
        wire::SealRefused{top_node, sealed.error().message.substr(0, 512)});
  });
}

void SourceMount::checkpoint_removed(uint64_t top_node) {
  const SourceNodePointer top = tree_.find_top(top_node);
  if (!top) return;
  top->checkpoint->removed_at_target = true;
  top->checkpoint->error->set(Error{EIO, "the checkpoint was removed at the target"});
}

}  // namespace ppmr
