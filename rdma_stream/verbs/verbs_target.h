// RDMA at the target, shared by all sessions: the rails, and the image store's memory, which is
// registered on each rail. A thread registers each region when the store allocates it, ahead of
// need and never per chunk. The store never frees a region, so regions stay registered until the
// target ends.
//
// There is one protection domain per rail, and no peer has access to it. Rejected: iWARP, where the
// peer must be able to write to the memory in which a read lands, with a key that goes over the
// wire: a source could write into the images of others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// Sums over all sessions; the VerbsPuller of each session adds to them.
struct VerbsTraffic {
  std::atomic<uint64_t> connections = 0;  // now
  std::atomic<uint64_t> connected = 0;    // since the start
  std::atomic<uint64_t> reads_posted = 0;
  std::atomic<uint64_t> bytes_read = 0;
  std::atomic<uint64_t> completions_by_poll = 0;
  std::atomic<uint64_t> completions_by_event = 0;
  std::atomic<uint64_t> strange_completions = 0;  // late, duplicate, or of an unknown read
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
  // Null when the rail was lost.
  std::shared_ptr<Domain> domain() const;
  // The local key of a region of the store; blocks while it is being registered. Errors: why the
  // rail was lost.
  Result<uint32_t> key(uint32_t region);
  // Registers a region of the store, unless this was done before or the rail was lost.
  void register_region(uint32_t region, std::span<std::byte> memory);
  // Deregisters all regions; key() fails with `error` from now on.
  void lose(const Error& error);
  VerbsCounters counters() const;

 private:
  static constexpr uint64_t kUnknown = UINT64_MAX;
  struct Entry {
    std::atomic<uint64_t> key = kUnknown;  // kUnknown, or a local key of 32 bits
    std::unique_ptr<Region> region;        // guarded by mutex_
  };

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;      // by region
  std::shared_ptr<Domain> domain_;  // guarded by mutex_
  std::optional<Error> lost_;       // guarded by mutex_
  VerbsCounters counters_;          // guarded by mutex_

  const std::unique_ptr<Rail> rail_;  // last, so destroyed first: its thread uses this TargetRail
};

// Threads: any. It outlives the sessions and their pullers.
class VerbsTarget {
 public:
  // `regions_max`: how many regions the store can have. Errors: those of Fabric::open.
  static Result<std::unique_ptr<VerbsTarget>> create(Fabric& fabric, RailChoice choice,
                                                     size_t regions_max);
  ~VerbsTarget() { close(); }
  // Deregisters everything; the caller has ended all sessions. Later regions are ignored.
  void close();

  // To be called once for each region that the store maps. Non-blocking: callers may hold locks.
  void region_mapped(uint32_t region, std::span<std::byte> memory);
  // The usable rails. Opens the rails again if all of them were lost.
  std::vector<std::shared_ptr<TargetRail>> rails();
  VerbsCounters counters() const;
  VerbsTraffic& traffic() { return traffic_; }

 private:
  using Rails = std::vector<std::shared_ptr<TargetRail>>;

  VerbsTarget(Fabric& fabric, RailChoice choice, size_t regions_max);
  Status open();
  Rails usable_locked() const;
  void register_regions();

  Fabric& fabric_;
  const RailChoice choice_;
  const size_t regions_max_;
  VerbsTraffic traffic_;

  std::mutex opening_mutex_;  // held by open()
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<uint32_t, std::span<std::byte>> memory_;
  Rails rails_;
  bool registered_ = false;  // false: the registrar thread has not yet seen a new region or rail
  std::atomic<bool> stopping_ = false;

  std::thread registrar_;  // last: the thread ends before the members that it uses
};

}  // namespace ppmr
