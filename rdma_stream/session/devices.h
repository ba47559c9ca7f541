// What a daemon has opened to move bytes other than over TCP: its RDMA devices. Only this file, and
// the choice in transport.h, know the movers; the mounts do not.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "rdma_stream/session/transport.h"
#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// Threads: any, except that nothing else runs while it is destroyed.
class SourceDevices {
 public:
  // Opens the devices for a pool of that size. Errors: with TransportMode::kVerbs, or if `choice`
  // names devices, those of Fabric::open(). Else a daemon without a device uses TCP.
  static Result<std::unique_ptr<SourceDevices>> open(TransportMode mode, const RailChoice& choice,
                                                     size_t pool_bytes);
  ~SourceDevices();

  // What sessions need. This object must live longer than the sessions.
  SourceTransport transport() const;
  // Null: there is no RDMA device.
  const VerbsSource* verbs() const { return verbs_.get(); }

 private:
  explicit SourceDevices(TransportMode mode);

  const TransportMode mode_;
  std::string why_no_verbs_ = "--transport tcp";
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<VerbsSource> verbs_;
};

// Threads: any, except that nothing else runs while it is closed or destroyed.
class TargetDevices {
 public:
  // Opens the devices for a store of at most `limit_bytes`, in regions of `region_bytes`. Errors:
  // as those of SourceDevices::open().
  static Result<std::unique_ptr<TargetDevices>> open(TransportMode mode, const RailChoice& choice,
                                                     size_t limit_bytes, size_t region_bytes);
  ~TargetDevices();

  TargetTransport transport() const;
  // Null: there is no RDMA device.
  VerbsTarget* verbs() const { return verbs_.get(); }
  // Called once for each region that the store maps. Does not block, so callers may hold locks.
  void region_mapped(uint32_t region, std::span<std::byte> memory) const;
  // Returns whether a device has the regions of the store registered, so that they must stay.
  bool keeps_memory() const { return verbs_ != nullptr; }
  // Deregisters the memory, before it is unmapped. All sessions have ended.
  void close();

 private:
  explicit TargetDevices(TransportMode mode);

  const TransportMode mode_;
  std::string why_no_verbs_ = "--transport tcp";
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<VerbsTarget> verbs_;
};

}  // namespace ppmr
