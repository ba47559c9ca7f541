// RDMA at the target, shared by all sessions: the rails, and the image store's memory, which is
// registered on each rail. A thread registers each region when the store allocates it, ahead of
// need and never per chunk. The store then never frees a region, so regions stay registered until
// the target ends.
//
// There is one protection domain per rail, and no peer has access to it. Rejected: iWARP. With
// iWARP the peer must be able to write to the memory in which a read lands, with a key that goes
// over the wire, so a source could write into the images of other sources.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// Sums over all sessions; the VerbsPuller of each session adds to them.
struct VerbsTraffic {
  std::atomic<uint64_t> connections = 0;  // open now
  std::atomic<uint64_t> connected = 0;    // opened since the start
  std::atomic<uint64_t> reads_posted = 0;
  std::atomic<uint64_t> bytes_read = 0;
  std::atomic<uint64_t> completions_by_poll = 0;
  std::atomic<uint64_t> completions_by_event = 0;
  // Completions that are late, duplicate, or of an unknown read.
  std::atomic<uint64_t> strange_completions = 0;
};

struct VerbsCounters {
  uint64_t rails = 0;
  uint64_t registered_bytes = 0;
  uint64_t registered_regions = 0;
};

// One rail and the store's regions on it. It is lost when its device is removed or when a region
// cannot be registered. Threads: any.
class TargetRail {
 public:
  TargetRail(std::unique_ptr<Rail> rail, std::shared_ptr<Domain> domain, size_t regions_max);

  Rail& rail() const { return *rail_; }
  // Returns null when the rail was lost.
  std::shared_ptr<Domain> domain() const;
  // Returns the local key of a region of the store; blocks while the region is being registered.
  // Errors: the reason why the rail was lost.
  Result<uint32_t> key(uint32_t region);
  // Registers a region of the store, unless it is registered already or the rail was lost.
  void register_region(uint32_t region, std::span<std::byte> memory);
  // Deregisters all regions; key() fails with `error` from now on.
  void lose(const Error& error);
  VerbsCounters counters() const;

 private:
  static constexpr uint64_t kUnknown = UINT64_MAX;
  struct Entry {
    std::atomic<uint64_t> key = kUnknown;  // kUnknown, or a local key of 32 bits
    std::unique_ptr<Region> region;        // guarded by the rail's mutex_
  };

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Entry> entries_;  // by region
  std::shared_ptr<Domain> domain_ PPMR_GUARDED_BY(mutex_);
  std::optional<Error> lost_ PPMR_GUARDED_BY(mutex_);
  VerbsCounters counters_ PPMR_GUARDED_BY(mutex_);

  // Declared last, so destroyed first: its thread uses this TargetRail.
  const std::unique_ptr<Rail> rail_;
};

// Threads: any. It lives longer than the sessions and their pullers.
class VerbsTarget {
 public:
  // `regions_max`: the number of regions that the store can have. Errors: those of Fabric::open.
  static Result<std::unique_ptr<VerbsTarget>> create(Fabric& fabric, RailChoice choice,
                                                     size_t regions_max);
  ~VerbsTarget() { close(); }
  // Deregisters all regions and ignores later ones. The caller has ended all sessions before.
  void close();

  // Called once for each region that the store maps. Does not block, so callers may hold locks.
  void region_mapped(uint32_t region, std::span<std::byte> memory);
  // Returns the usable rails. If all rails were lost, opens them again.
  std::vector<std::shared_ptr<TargetRail>> rails();
  VerbsCounters counters() const;
  VerbsTraffic& traffic() { return traffic_; }

 private:
  using Rails = std::vector<std::shared_ptr<TargetRail>>;

  VerbsTarget(Fabric& fabric, RailChoice choice, size_t regions_max);
  Status open();
  Rails usable_locked() const PPMR_REQUIRES(mutex_);
  void register_regions();

  Fabric& fabric_;
  const RailChoice choice_;
  const size_t regions_max_;
  VerbsTraffic traffic_;

  Mutex opening_mutex_;  // held by open()
  mutable Mutex mutex_;
  CondVar changed_;
  std::map<uint32_t, std::span<std::byte>> memory_ PPMR_GUARDED_BY(mutex_);
  Rails rails_ PPMR_GUARDED_BY(mutex_);
  // False: there is a new region or rail that the registrar thread has not processed.
  bool registered_ PPMR_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stopping_ = false;

  std::thread registrar_;  // declared last: the thread ends before the members that it uses
};

}  // namespace ppmr
