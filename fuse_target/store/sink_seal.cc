// Seals a checkpoint. The source sends a manifest of its checkpoint; the target compares the
// manifest with its own tree, entry by entry. The target seals the checkpoint when they are equal.
#include <set>

#include "base/clock.h"
#include "fuse_target/store/image_tree.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// A checkpoint is due to be kept this long after its seal. Within this time, a checkpoint of a
// migration or an epoch of a protected process is marked or removed, so the keeper does not keep
// it.
constexpr std::chrono::milliseconds kKeepDelay{500};

}  // namespace

Status ImageTree::manifest_entry(SessionId session, const wire::ManifestEntry& message) {
  MutexLock lock(mutex_);
  auto top = changeable_locked(session, message.checkpoint);
  if (!top) return failure(top.error());
  StoredCheckpoint& checkpoint = *(*top)->checkpoint;
  // A manifest with more entries than the checkpoint has nodes is wrong. Do not store the further
  // entries: a source could exhaust the memory.
  if (checkpoint.manifest.size() > checkpoint.nodes) {
    checkpoint.manifest_too_long = true;
  } else {
    checkpoint.manifest.push_back(message);
  }
  return {};
}

std::string ImageTree::entry_difference_locked(const StoredCheckpoint& checkpoint,
                                               const wire::ManifestEntry& entry) {
  const std::string name = "'" + entry.name.substr(0, wire::kNameMaxBytes) + "'";
  auto found = node_locked(checkpoint.top.session, entry.node);
  if (!found || (*found)->checkpoint.get() != &checkpoint || !(*found)->linked) {
    return name + ": missing at the target";
  }
  const StoredNode& node = **found;
  const auto parent = node.parent.lock();
  const uint64_t parent_id = node.key == checkpoint.top ? 0 : parent->key.node;
  if (node.name != entry.name || parent_id != entry.parent) {
    return name + ": has another name or parent at the target";
  }
  if (node.type != entry.type) return name + ": has another type at the target";
  if (node.attributes.mode != (entry.mode & 07777))
    return name + ": has another mode at the target";
  if (!node.is_file()) return {};
  const ImageFile::Facts facts = node.file->facts();
  if (facts.in_flight) return name + ": bytes are in flight";
  if (facts.size_bytes != entry.size_bytes) {
    return name + ": " + std::to_string(facts.size_bytes) + " bytes at the target, " +
           std::to_string(entry.size_bytes) + " at the source";
  }
  if (facts.digest != entry.digest) return name + ": its digest differs";
  if (!facts.closed) return name + ": still open for writing";
  return {};
}

std::string ImageTree::manifest_difference_locked(const StoredCheckpoint& checkpoint,
                                                  uint64_t entry_count) {
  if (checkpoint.manifest_too_long || checkpoint.manifest.size() != checkpoint.nodes ||
      entry_count != checkpoint.nodes) {
    return std::to_string(checkpoint.nodes) + " names at the target, " +
           std::to_string(entry_count) + " at the source";
  }
  std::set<uint64_t> seen;
  for (const auto& entry : checkpoint.manifest) {
    if (!seen.insert(entry.node).second) return "'" + entry.name + "': listed twice";
    if (std::string difference = entry_difference_locked(checkpoint, entry); !difference.empty()) {
      return difference;
    }
  }
  return {};
}

Status ImageTree::seal(SessionId session, const wire::Seal& message) {
  StoredNodePointer top;
  std::string difference;
  {
    MutexLock lock(mutex_);
    auto found = node_locked(session, message.checkpoint);
    if (!found) return failure(found.error());
    top = *found;
    StoredCheckpoint& checkpoint = *top->checkpoint;
    if (!(checkpoint.top == top->key))
      return failure(EINVAL, "'" + top->name + "': not a checkpoint");
    if (checkpoint.state() == StoredState::kSealed) return {};
    if (checkpoint.failed())
      return failure(EIO,
                     "'" + top->name + "': the checkpoint failed: " + checkpoint.error().message);
    difference = manifest_difference_locked(checkpoint, message.entry_count);
    checkpoint.manifest = {};
    checkpoint.manifest_too_long = false;
    if (difference.empty()) {
      if (!checkpoint.advance(StoredState::kSealed)) difference = "the checkpoint failed meanwhile";
      checkpoint.sealed_ns = realtime_ns();
      checkpoint.keep_after = StoredCheckpoint::Clock::now() + kKeepDelay;
    }
    if (!difference.empty()) {
      difference = "'" + top->name + "' differs between source and target: " + difference;
      ++checkpoint.refused_seals;
      checkpoint.seal_error = difference;
    }
  }
  if (!difference.empty()) {
    changed_.notify_all();
    return failure(EIO, difference);
  }
  spdlog::info("checkpoint '{}' is sealed", top->name);
  state_changed(*top->checkpoint);
  return {};
}

Status ImageTree::abandon_checkpoint(SessionId session, const wire::Abandon& message) {
  StoredCheckpointPointer checkpoint;
  {
    MutexLock lock(mutex_);
    auto top = node_locked(session, message.checkpoint);
    if (!top) return failure(top.error());
    checkpoint = (*top)->checkpoint;
  }
  fail(checkpoint, Error{EIO, "abandoned by its source: " + message.reason.substr(0, 512)});
  return {};
}

Status ImageTree::seal_refused(SessionId session, const wire::SealRefused& message) {
  {
    MutexLock lock(mutex_);
    auto top = node_locked(session, message.checkpoint);
    if (!top) return failure(top.error());
    StoredCheckpoint& checkpoint = *(*top)->checkpoint;
    ++checkpoint.refused_seals;
    checkpoint.seal_error = "its source refused to seal it: " + message.reason.substr(0, 512);
  }
  changed_.notify_all();
  return {};
}

}  // namespace ppmr
