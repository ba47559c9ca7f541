// A Sink in memory that checks the contract of sink.h and models the content of files.
//
// violations() lists every breach: a call for an ended session, a chunk that lands twice, memory
// reserved without an announcement or twice for the same bytes, a truncation while a chunk of the
// file is in flight.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mapped_memory.h"
#include "rdma_stream/mover/sink.h"

namespace ppmr {

struct MemorySinkOptions {
  uint64_t capacity_bytes = uint64_t{1} << 40;  // beyond this, reserve() returns ENOSPC
  // Then reserve() returns EAGAIN instead of ENOSPC, until raise_capacity().
  bool wait_for_space = false;
};

// Threads: any.
class MemorySink final : public Sink {
 public:
  explicit MemorySink(MemorySinkOptions options = {});
  ~MemorySink() override;

  void session_opened(SessionId session, const std::string& source_name,
                      const std::string& owner) override;
  void session_ended(SessionId session, const std::string& reason) override;
  Status claim(SessionId session, const wire::Claim& message) override;
  Status make(SessionId session, const wire::Make& message) override;
  Status remove(SessionId session, const wire::Remove& message) override;
  Status rename(SessionId session, const wire::Rename& message) override;
  Status set_attributes(SessionId session, const wire::SetAttributes& message) override;
  Status truncate(SessionId session, const wire::Truncate& message) override;
  Status punch_hole(SessionId session, const wire::PunchHole& message) override;
  Status zeros(SessionId session, const wire::Zeros& message) override;
  Status opened_for_write(SessionId session, const wire::OpenedForWrite& message) override;
  Status closed(SessionId session, const wire::Closed& message) override;
  Status forget(SessionId session, const wire::Forget& message) override;
  Status announced(NodeKey file, uint64_t offset, uint32_t length) override;
  Result<Landing> reserve(NodeKey file, uint64_t offset, uint32_t length) override;
  Status land(const Landing& landing, uint64_t chunk_digest) override;
  void abandon(const Landing& landing, const Error& error) override;
  void abandon_announced(NodeKey file, uint64_t offset, uint32_t length,
                         const Error& error) override;
  Result<size_t> read(NodeKey file, uint64_t offset, std::span<std::byte> bytes) override;
  Status manifest_entry(SessionId session, const wire::ManifestEntry& message) override;
  Status seal(SessionId session, const wire::Seal& message) override;
  Status abandon_checkpoint(SessionId session, const wire::Abandon& message) override;
  Status seal_refused(SessionId, const wire::SealRefused&) override { return {}; }
  wire::Space space() const override;

  // ---- For the test ----
  std::vector<std::string> violations() const;
  size_t open_sessions() const;
  size_t sessions_opened() const;
  std::string end_reason() const;  // of the session that ended last
  size_t chunks_in_flight() const;
  bool sealed(uint64_t checkpoint) const;
  // Returns the bytes that have landed in `node`, with zeros elsewhere. If several sessions have
  // such a node, an open session takes precedence over an ended one. Empty if no session has the
  // node.
  std::optional<std::vector<std::byte>> content(uint64_t node) const;
  std::vector<wire::Zeros> zeros() const;  // in the order of their messages
  // Offsets of all chunks, in the order of their landing.
  std::vector<uint64_t> landed_offsets() const;
  std::vector<std::string> names_made() const;  // in the order of their messages
  void raise_capacity(uint64_t capacity_bytes);
  // Returns the memory of all landings: region 0.
  std::span<std::byte> memory() const { return arena_.bytes(); }
  // From now on overlapping chunks in flight are no violation.
  void allow_overlaps() { overlaps_allowed_ = true; }
  // Sets a function that is called without a lock at the beginning of every land() or make(). It
  // simulates a slow disk or a lack of memory.
  void set_before_land(std::function<void()> hook) { before_land_ = std::move(hook); }
  void set_before_make(std::function<void()> hook) { before_make_ = std::move(hook); }

 private:
  static constexpr size_t kBlockBytes = 16 << 10;
  static constexpr size_t kArenaBytes = size_t{1} << 30;  // bytes of address space
  using Block = std::span<std::byte>;                     // a part of the arena

  struct InFlight {
    uint64_t offset = 0;
    uint32_t length = 0;
    uint64_t order = 0;
    bool reserved = false;
  };
  struct Node {
    wire::NodeType type = wire::NodeType::kFile;
    uint64_t parent = 0;
    std::string name;
    uint64_t size_bytes = 0;
    uint64_t digest = 0;
    std::map<uint64_t, Block> blocks;
    std::list<InFlight> in_flight;
  };
  struct Session {
    bool ended = false;
    std::map<uint64_t, Node> nodes;
    std::map<uint64_t, std::vector<wire::ManifestEntry>> manifests;
    std::set<uint64_t> sealed;
  };

  Session* live_locked(SessionId session, const char* call);
  Node* node_locked(NodeKey key);
  std::list<InFlight>::iterator find_locked(Node& node, uint64_t offset, uint32_t length,
                                            bool reserved);
  std::byte* bytes_locked(Node& node, uint64_t offset, size_t& run_bytes);
  void violation_locked(std::string text) { violations_.push_back(std::move(text)); }

  Block take_block_locked();

  MemorySinkOptions options_;
  std::function<void()> before_land_;
  std::function<void()> before_make_;
  std::atomic<bool> overlaps_allowed_ = false;
  const MappedMemory arena_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<SessionId, Session> sessions_;
  std::vector<std::string> violations_;
  std::vector<wire::Zeros> zeros_;
  std::vector<uint64_t> landed_offsets_;
  std::vector<std::string> names_made_;
  std::string end_reason_;
  size_t arena_used_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t last_order_ = 0;
};

}  // namespace ppmr
