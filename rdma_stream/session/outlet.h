// Where the source mount sends what it captures: to a target (Sender), or nowhere (DiscardOutlet,
// to measure aggregation alone).
//
// Threads: all members by any.
#pragma once

#include <functional>
#include <string>

#include "rdma_stream/session/file_stream.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

struct OutletCounters {
  uint64_t verified_bytes = 0;   // in place at the target, CRC checked
  uint64_t announced_bytes = 0;  // handed over so far
  uint64_t chunks = 0;
  uint64_t inline_chunks = 0;
  uint64_t reconnections = 0;
  bool connected = false;
  wire::Transport transport = wire::Transport::kTcp;
  std::string transport_why;  // and why not the other
  std::string peer;
  std::string peer_name;
  std::string security;                  // PeerIdentity::text(), of the target
  std::chrono::milliseconds silence{0};  // since the peer was last heard
};

class Outlet {
 public:
  virtual ~Outlet() = default;

  // Takes the chunk; the file stream hears how it went.
  virtual void announce(Chunk chunk) = 0;

  // Names and attributes: sent in order, applied at the target in that order.
  virtual Status send(const wire::Make& message) = 0;
  virtual Status send(const wire::Remove& message) = 0;
  virtual Status send(const wire::SetAttributes& message) = 0;
  virtual Status send(const wire::Truncate& message) = 0;
  virtual Status send(const wire::PunchHole& message) = 0;
  virtual Status send(const wire::OpenedForWrite& message) = 0;
  virtual Status send(const wire::Closed& message) = 0;
  virtual Status send(const wire::Forget& message) = 0;
  virtual Status send(const wire::ManifestEntry& message) = 0;
  virtual Status send(const wire::Abandon& message) = 0;
  virtual Status send(const wire::SealRefused& message) = 0;

  // These wait for the target's word; `request` is filled in here. Errors: the target's, or the
  // session's.
  virtual Status claim(wire::Claim message) = 0;
  virtual Status rename(wire::Rename message) = 0;
  virtual Status seal(wire::Seal message) = 0;
  // The bytes at `offset` as the target holds them; fewer at the end of the file. Errors: also
  // EINTR, when `interrupted` says so.
  virtual Result<size_t> read_back(uint64_t node, uint64_t offset, std::span<std::byte> bytes,
                                   const Interrupted& interrupted) = 0;

  // Waits until the target has acted on all that was sent about `node` so far. Errors: as above.
  virtual Status await_applied(uint64_t node, const Interrupted& interrupted) = 0;

  // Ends the session now: whoever waits for the target gets `error`.
  virtual void fail(Error error) = 0;

  virtual wire::Space space() const = 0;
  // The error that ended the session, if it has ended.
  virtual Status status() const = 0;
  virtual OutletCounters counters() const = 0;
};

// Forgets every chunk at once.
class DiscardOutlet : public Outlet {
 public:
  void announce(Chunk chunk) override;
  Status send(const wire::Make&) override { return {}; }
  Status send(const wire::Remove&) override { return {}; }
  Status send(const wire::SetAttributes&) override { return {}; }
  Status send(const wire::Truncate&) override { return {}; }
  Status send(const wire::PunchHole&) override { return {}; }
  Status send(const wire::OpenedForWrite&) override { return {}; }
  Status send(const wire::Closed&) override { return {}; }
  Status send(const wire::Forget&) override { return {}; }
  Status send(const wire::ManifestEntry&) override { return {}; }
  Status send(const wire::Abandon&) override { return {}; }
  Status send(const wire::SealRefused&) override { return {}; }
  Status claim(wire::Claim) override { return {}; }
  Status rename(wire::Rename) override { return {}; }
  Status seal(wire::Seal) override;
  Result<size_t> read_back(uint64_t node, uint64_t offset, std::span<std::byte> bytes,
                           const Interrupted& interrupted) override;
  Status await_applied(uint64_t, const Interrupted&) override { return {}; }
  void fail(Error) override {}
  wire::Space space() const override;
  Status status() const override { return {}; }
  OutletCounters counters() const override;

 private:
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint64_t> chunks_ = 0;
};

}  // namespace ppmr
