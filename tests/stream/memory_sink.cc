#include "tests/stream/memory_sink.h"

#include <algorithm>
#include <cassert>

namespace ppmr {
namespace {

std::string where(NodeKey key, uint64_t offset, uint32_t length) {
  return "session " + std::to_string(key.session) + " node " + std::to_string(key.node) + " [" +
         std::to_string(offset) + ", +" + std::to_string(length) + ")";
}

}  // namespace

MemorySink::MemorySink(MemorySinkOptions options)
    : options_(options), arena_(std::move(MappedMemory::create(kArenaBytes).value())) {}

MemorySink::~MemorySink() = default;

// Returns a block of zeros. Blocks are never reused, so late bytes cannot appear in another file.
MemorySink::Block MemorySink::take_block_locked() {
  assert(arena_used_bytes_ + kBlockBytes <= arena_.bytes().size());
  const Block block = arena_.bytes().subspan(arena_used_bytes_, kBlockBytes);
  arena_used_bytes_ += kBlockBytes;
  return block;
}

// ---- Sessions and names ------------------------------------------------------------------------

MemorySink::Session* MemorySink::live_locked(SessionId session, const char* call) {
  auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    violation_locked(std::string(call) + " of a session that was not opened");
    return nullptr;
  }
  if (found->second.ended) {
    violation_locked(std::string(call) + " of a session that has ended");
    return nullptr;
  }
  return &found->second;
}

MemorySink::Node* MemorySink::node_locked(NodeKey key) {
  auto session = sessions_.find(key.session);
  if (session == sessions_.end()) return nullptr;
  auto node = session->second.nodes.find(key.node);
  return node == session->second.nodes.end() ? nullptr : &node->second;
}

void MemorySink::session_opened(SessionId session, const std::string&, const std::string&) {
  std::lock_guard lock(mutex_);
  if (!sessions_.try_emplace(session).second) violation_locked("session opened twice");
}

void MemorySink::session_ended(SessionId session, const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (Session* live = live_locked(session, "session_ended")) live->ended = true;
  end_reason_ = reason;
}

Status MemorySink::claim(SessionId session, const wire::Claim& message) {
  std::lock_guard lock(mutex_);
  Session* live = live_locked(session, "claim");
  if (live == nullptr) return failure(EIO, "no session");
  for (auto& [id, other] : sessions_) {
    for (auto& [number, node] : other.nodes) {
      if (node.parent == 0 && node.name == message.name) {
        return failure(EEXIST, "claim " + message.name + ": the name exists");
      }
    }
  }
  names_made_.push_back(message.name);
  Node& node = live->nodes[message.node];
  node.type = message.type;
  node.name = message.name;
  return {};
}

Status MemorySink::make(SessionId session, const wire::Make& message) {
  if (before_make_) before_make_();
  std::lock_guard lock(mutex_);
  Session* live = live_locked(session, "make");
  if (live == nullptr) return failure(EIO, "no session");
  if (!live->nodes.contains(message.parent)) violation_locked("make below an unknown node");
  auto [made, fresh] = live->nodes.try_emplace(message.node);
  if (!fresh) violation_locked("make of an existing node");
  names_made_.push_back(message.name);
  made->second.type = message.type;
  made->second.parent = message.parent;
  made->second.name = message.name;
  return {};
}

Status MemorySink::remove(SessionId session, const wire::Remove& message) {
  std::lock_guard lock(mutex_);
  if (Session* live = live_locked(session, "remove")) {
    std::erase_if(live->nodes, [&](auto& entry) {
      return entry.second.parent == message.parent && entry.second.name == message.name;
    });
  }
  return {};
}

Status MemorySink::rename(SessionId session, const wire::Rename& message) {
  std::lock_guard lock(mutex_);
  if (Session* live = live_locked(session, "rename")) {
    for (auto& [number, node] : live->nodes) {
      if (node.parent == message.parent && node.name == message.name) {
        node.parent = message.new_parent;
        node.name = message.new_name;
        return {};
      }
    }
  }
  return failure(ENOENT, "rename " + message.name + ": no such entry");
}

Status MemorySink::set_attributes(SessionId session, const wire::SetAttributes&) {
  std::lock_guard lock(mutex_);
  (void)live_locked(session, "set_attributes");
  return {};
}

Status MemorySink::truncate(SessionId session, const wire::Truncate& message) {
  std::lock_guard lock(mutex_);
  if (live_locked(session, "truncate") == nullptr) return failure(EIO, "no session");
  Node* node = node_locked({session, message.node});
  if (node == nullptr) return failure(ENOENT, "truncate: no such node");
  if (!node->in_flight.empty()) violation_locked("truncate while chunks are in flight");
  if (message.size_bytes < node->size_bytes) {
    std::erase_if(node->blocks,
                  [&](auto& entry) { return entry.first * kBlockBytes >= message.size_bytes; });
    const size_t rest = message.size_bytes % kBlockBytes;
    auto last = node->blocks.find(message.size_bytes / kBlockBytes);
    if (last != node->blocks.end()) {
      std::fill(last->second.begin() + static_cast<ptrdiff_t>(rest), last->second.end(),
                std::byte{0});
    }
  }
  node->size_bytes = message.size_bytes;
  node->digest = 0;
  return {};
}

Status MemorySink::punch_hole(SessionId session, const wire::PunchHole& message) {
  std::lock_guard lock(mutex_);
  if (live_locked(session, "punch_hole") == nullptr) return failure(EIO, "no session");
  Node* node = node_locked({session, message.node});
  if (node == nullptr) return failure(ENOENT, "punch_hole: no such node");
  if (!node->in_flight.empty()) violation_locked("punch_hole while chunks are in flight");
  node->digest = 0;
  return {};
}

Status MemorySink::zeros(SessionId session, const wire::Zeros& message) {
  std::lock_guard lock(mutex_);
  if (live_locked(session, "zeros") == nullptr) return failure(EIO, "no session");
  Node* node = node_locked({session, message.node});
  if (node == nullptr) return failure(ENOENT, "zeros: no such node");
  node->size_bytes = std::max(node->size_bytes, message.offset + message.length_bytes);
  zeros_.push_back(message);
  return {};
}

Status MemorySink::opened_for_write(SessionId session, const wire::OpenedForWrite&) {
  std::lock_guard lock(mutex_);
  (void)live_locked(session, "opened_for_write");
  return {};
}

Status MemorySink::closed(SessionId session, const wire::Closed& message) {
  std::lock_guard lock(mutex_);
  if (live_locked(session, "closed") == nullptr) return failure(EIO, "no session");
  Node* node = node_locked({session, message.node});
  if (node == nullptr) return failure(ENOENT, "closed: no such node");
  node->size_bytes = message.size_bytes;
  return {};
}

Status MemorySink::forget(SessionId session, const wire::Forget& message) {
  std::lock_guard lock(mutex_);
  if (Session* live = live_locked(session, "forget")) live->nodes.erase(message.node);
  return {};
}

// ---- Bytes -------------------------------------------------------------------------------------

Status MemorySink::announced(NodeKey file, uint64_t offset, uint32_t length) {
  std::lock_guard lock(mutex_);
  if (live_locked(file.session, "announced") == nullptr) return failure(EIO, "no session");
  Node* node = node_locked(file);
  if (node == nullptr || node->type != wire::NodeType::kFile) {
    return failure(ENOENT, "announced: no such file");
  }
  node->in_flight.push_back({offset, length, ++last_order_, false});
  return {};
}

std::list<MemorySink::InFlight>::iterator MemorySink::find_locked(Node& node, uint64_t offset,
                                                                  uint32_t length, bool reserved) {
  return std::find_if(node.in_flight.begin(), node.in_flight.end(), [&](const InFlight& chunk) {
    return chunk.offset == offset && chunk.length == length && chunk.reserved == reserved;
  });
}

std::byte* MemorySink::bytes_locked(Node& node, uint64_t offset, size_t& run_bytes) {
  Block& block = node.blocks[offset / kBlockBytes];
  if (block.empty()) block = take_block_locked();
  const size_t start = offset % kBlockBytes;
  run_bytes = kBlockBytes - start;
  return block.data() + start;
}

Result<Landing> MemorySink::reserve(NodeKey file, uint64_t offset, uint32_t length) {
  std::lock_guard lock(mutex_);
  if (live_locked(file.session, "reserve") == nullptr) return failure(EIO, "no session");
  Node* node = node_locked(file);
  if (node == nullptr) return failure(ENOENT, "reserve: no such file");
  auto chunk = find_locked(*node, offset, length, /*reserved=*/false);
  if (chunk == node->in_flight.end()) {
    violation_locked("reserve without announcement: " + where(file, offset, length));
    return failure(EIO, "not announced");
  }
  for (const InFlight& other : node->in_flight) {
    if (!overlaps_allowed_ && other.order < chunk->order && other.offset < offset + length &&
        offset < other.offset + other.length) {
      violation_locked("reserve while an earlier chunk is in flight there: " +
                       where(file, offset, length));
    }
  }
  if (used_bytes_ + length > options_.capacity_bytes) {
    if (options_.wait_for_space) return failure(EAGAIN, "reserve: no memory now");
    return failure(ENOSPC, "reserve: no memory");
  }
  used_bytes_ += length;
  chunk->reserved = true;
  Landing landing;
  landing.file = file;
  landing.offset = offset;
  landing.length = length;
  for (uint32_t placed = 0; placed < length;) {
    size_t run_bytes = 0;
    std::byte* const data = bytes_locked(*node, offset + placed, run_bytes);
    const auto piece = static_cast<uint32_t>(std::min<size_t>(run_bytes, length - placed));
    assert(landing.piece_count < Landing::kPiecesMax);
    landing.pieces[landing.piece_count++] = {data, piece, 0, 0};
    placed += piece;
  }
  return landing;
}

Status MemorySink::land(const Landing& landing, uint64_t chunk_digest) {
  if (before_land_) before_land_();
  std::lock_guard lock(mutex_);
  Node* node = node_locked(landing.file);
  if (node == nullptr) return failure(EIO, "land: no such file");
  auto chunk = find_locked(*node, landing.offset, landing.length, /*reserved=*/true);
  if (chunk == node->in_flight.end()) {
    violation_locked("land twice or without reservation: " +
                     where(landing.file, landing.offset, landing.length));
    return failure(EIO, "not reserved");
  }
  node->in_flight.erase(chunk);
  node->size_bytes = std::max(node->size_bytes, landing.offset + landing.length);
  node->digest += chunk_digest;
  landed_offsets_.push_back(landing.offset);
  return {};
}

void MemorySink::abandon(const Landing& landing, const Error&) {
  std::lock_guard lock(mutex_);
  used_bytes_ -= landing.length;
  Node* node = node_locked(landing.file);
  if (node == nullptr) return;
  auto chunk = find_locked(*node, landing.offset, landing.length, /*reserved=*/true);
  if (chunk == node->in_flight.end()) {
    violation_locked("abandon without reservation: " +
                     where(landing.file, landing.offset, landing.length));
    return;
  }
  node->in_flight.erase(chunk);
}

void MemorySink::abandon_announced(NodeKey file, uint64_t offset, uint32_t length, const Error&) {
  std::lock_guard lock(mutex_);
  Node* node = node_locked(file);
  if (node == nullptr) return;
  auto chunk = find_locked(*node, offset, length, /*reserved=*/false);
  if (chunk == node->in_flight.end()) {
    violation_locked("abandon without announcement: " + where(file, offset, length));
    return;
  }
  node->in_flight.erase(chunk);
}

Result<size_t> MemorySink::read(NodeKey file, uint64_t offset, std::span<std::byte> bytes) {
  std::lock_guard lock(mutex_);
  if (live_locked(file.session, "read") == nullptr) return failure(EIO, "no session");
  Node* node = node_locked(file);
  if (node == nullptr) return failure(ENOENT, "read: no such file");
  if (offset >= node->size_bytes) return size_t{0};
  const size_t count = std::min<uint64_t>(bytes.size(), node->size_bytes - offset);
  for (size_t done = 0; done < count;) {
    size_t run_bytes = 0;
    const std::byte* data = bytes_locked(*node, offset + done, run_bytes);
    run_bytes = std::min(run_bytes, count - done);
    std::copy_n(data, run_bytes, bytes.begin() + static_cast<ptrdiff_t>(done));
    done += run_bytes;
  }
  return count;
}

// ---- Checkpoints -------------------------------------------------------------------------------

Status MemorySink::manifest_entry(SessionId session, const wire::ManifestEntry& message) {
  std::lock_guard lock(mutex_);
  if (Session* live = live_locked(session, "manifest_entry")) {
    live->manifests[message.checkpoint].push_back(message);
  }
  return {};
}

Status MemorySink::seal(SessionId session, const wire::Seal& message) {
  std::lock_guard lock(mutex_);
  Session* live = live_locked(session, "seal");
  if (live == nullptr) return failure(EIO, "no session");
  const auto entries = std::exchange(live->manifests[message.checkpoint], {});
  if (entries.size() != message.entry_count) return failure(EIO, "seal: entries are missing");
  for (const auto& entry : entries) {
    auto found = live->nodes.find(entry.node);
    if (found == live->nodes.end()) return failure(EIO, "seal: a node is missing");
    const Node& node = found->second;
    if (node.name != entry.name || node.size_bytes != entry.size_bytes ||
        node.digest != entry.digest || !node.in_flight.empty()) {
      return failure(EIO, "seal: " + entry.name + " differs");
    }
  }
  live->sealed.insert(message.checkpoint);
  return {};
}

Status MemorySink::abandon_checkpoint(SessionId session, const wire::Abandon&) {
  std::lock_guard lock(mutex_);
  (void)live_locked(session, "abandon_checkpoint");
  return {};
}

wire::Space MemorySink::space() const {
  std::lock_guard lock(mutex_);
  return {options_.capacity_bytes,
          options_.capacity_bytes - std::min(used_bytes_, options_.capacity_bytes)};
}

// ---- For the test ------------------------------------------------------------------------------

std::vector<std::string> MemorySink::violations() const {
  std::lock_guard lock(mutex_);
  return violations_;
}

size_t MemorySink::open_sessions() const {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(sessions_.begin(), sessions_.end(),
                                           [](auto& entry) { return !entry.second.ended; }));
}

size_t MemorySink::sessions_opened() const {
  std::lock_guard lock(mutex_);
  return sessions_.size();
}

std::string MemorySink::end_reason() const {
  std::lock_guard lock(mutex_);
  return end_reason_;
}

size_t MemorySink::chunks_in_flight() const {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (auto& [id, session] : sessions_) {
    for (auto& [number, node] : session.nodes) count += node.in_flight.size();
  }
  return count;
}

bool MemorySink::sealed(uint64_t checkpoint) const {
  std::lock_guard lock(mutex_);
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [&](auto& entry) { return entry.second.sealed.contains(checkpoint); });
}

std::optional<std::vector<std::byte>> MemorySink::content(uint64_t number) const {
  std::lock_guard lock(mutex_);
  const Node* node = nullptr;
  for (auto& [id, session] : sessions_) {
    auto found = session.nodes.find(number);
    if (found == session.nodes.end()) continue;
    node = &found->second;
    if (!session.ended) break;
  }
  if (node == nullptr) return std::nullopt;
  std::vector<std::byte> bytes(node->size_bytes);
  for (auto& [index, block] : node->blocks) {
    const size_t start = index * kBlockBytes;
    if (start >= bytes.size()) break;
    std::copy_n(block.begin(), std::min(kBlockBytes, bytes.size() - start),
                bytes.begin() + static_cast<ptrdiff_t>(start));
  }
  return bytes;
}

std::vector<wire::Zeros> MemorySink::zeros() const {
  std::lock_guard lock(mutex_);
  return zeros_;
}

std::vector<uint64_t> MemorySink::landed_offsets() const {
  std::lock_guard lock(mutex_);
  return landed_offsets_;
}

std::vector<std::string> MemorySink::names_made() const {
  std::lock_guard lock(mutex_);
  return names_made_;
}

void MemorySink::raise_capacity(uint64_t capacity_bytes) {
  std::lock_guard lock(mutex_);
  options_.capacity_bytes = capacity_bytes;
}

}  // namespace ppmr
