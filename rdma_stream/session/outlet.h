// The functions that the source mount requires of the sender. DiscardOutlet accepts all calls and
// sends nothing; it measures aggregation alone.
//
// Threads: any.
#pragma once

#include <functional>
#include <string>
#include <variant>

#include "rdma_stream/session/file_stream.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

struct OutletCounters {
  uint64_t verified_bytes = 0;  // bytes that are in place at the target and verified
  uint64_t wire_bytes = 0;      // their length in the slots: less if they were compressed
  uint64_t announced_bytes = 0;
  uint64_t chunks = 0;
  uint64_t inline_chunks = 0;
  uint64_t reconnections = 0;
  bool connected = false;
  wire::Transport transport = wire::Transport::kTcp;
  std::string transport_why;  // the reason for this choice
  std::string peer;
  std::string peer_name;
  std::string security;  // PeerIdentity::text() of the target
  // Protection of the chunks: to_string(wire::Protection).
  std::string encryption = "none";
  std::string encryption_why;                // the reason for this protection
  std::string compression = "off";           // to_string(CompressionMethod)
  std::chrono::milliseconds silence{0};      // time since the peer last sent anything
  std::chrono::milliseconds silence_max{0};  // silence after which the session fails
};

// Messages that get no answer. The target applies them in the order in which they were sent.
using OneWayMessage =
    std::variant<wire::Make, wire::Remove, wire::Rename, wire::SetAttributes, wire::Truncate,
                 wire::PunchHole, wire::Zeros, wire::OpenedForWrite, wire::Closed, wire::Forget,
                 wire::ManifestEntry, wire::Abandon, wire::SealRefused>;

class Outlet {
 public:
  virtual ~Outlet() = default;

  // Sends the chunk and reports the result to its file stream. May block, see
  // FileStream::announce_in_turn().
  virtual void announce(Chunk chunk) = 0;

  // The outlet may hold small chunks and these messages back for a moment, see
  // Channel::send_soon(). Errors: EIO after the session has failed. The text of an Abandon is at
  // most wire::kTextMaxBytes.
  virtual Status send(const OneWayMessage& message) = 0;
  // Called when a caller waits for the target: sends the messages that were held back.
  virtual void push() {}

  // These functions set the message's `request` number, send the message and block until the target
  // answers. Errors: the target's, or EIO when the session fails.
  virtual Status claim(wire::Claim message) = 0;
  virtual Status rename(wire::Rename message) = 0;
  virtual Status seal(wire::Seal message) = 0;
  // Reads back the bytes at `offset`; fewer at the end of the file. Errors: the target's; EIO when
  // the session fails; EINTR when `interrupted` returns true.
  virtual Result<size_t> read_back(uint64_t node, uint64_t offset, std::span<std::byte> bytes,
                                   const Interrupted& interrupted) = 0;

  // Blocks until the target has applied all earlier messages about `node`. Errors: those of
  // read_back().
  virtual Status await_applied(uint64_t node, const Interrupted& interrupted) = 0;

  // From now on the session ends only after the target was silent for this long, or for the peer
  // timeout if that is longer. Asks the target to wait as long for the source. Never blocks.
  virtual void set_patience(std::chrono::milliseconds) {}

  // Ends the session now: calls that wait for the target fail with EIO and the text of `error`.
  virtual void fail(Error error) = 0;

  virtual wire::Space space() const = 0;
  // Returns the error that ended the session, or success if it has not ended.
  virtual Status status() const = 0;
  virtual OutletCounters counters() const = 0;
};

class DiscardOutlet : public Outlet {
 public:
  void announce(Chunk chunk) override;
  Status send(const OneWayMessage&) override { return {}; }
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
