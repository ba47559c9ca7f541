// RDMA at the target, shared by all sessions: its rails, and on each of them the image store's
// memory, registered region by region as the store takes it: ahead of need, never per chunk. The
// store keeps a region for ever, so it stays registered as long as the target lives.
//
// One protection domain per rail: no peer gets access to anything here. (On iWARP the sink of a
// read must be writable by the peer that is read from, with a key that goes over the wire: there
// the sources of one target have to be trusted not to write into each other's images.)
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

// Counted by the pullers of all sessions.
struct VerbsTraffic {
  std::atomic<uint64_t> connections = 0;  // now
  std::atomic<uint64_t> connected = 0;    // since the start
  std::atomic<uint64_t> reads_posted = 0;
  std::atomic<uint64_t> bytes_read = 0;
  std::atomic<uint64_t> completions_by_poll = 0;
  std::atomic<uint64_t> completions_by_event = 0;
  std::atomic<uint64_t> strange_completions = 0;  // late, doubled, or never asked for
};

struct VerbsCounters {
  uint64_t rails = 0;
  uint64_t registered_bytes = 0;
  uint64_t registered_regions = 0;
};

// One rail and the store's regions on it. Threads: any.
class TargetRail {
 public:
  TargetRail(std::unique_ptr<Rail> rail, std::shared_ptr<Domain> domain, size_t regions_max)
      : rail_(std::move(rail)), entries_(regions_max), domain_(std::move(domain)) {}

  Rail& rail() const { return *rail_; }
  // Null when the rail was lost.
  std::shared_ptr<Domain> domain() const;
  // The local key of a region of the store; waits while it is being registered. Errors: those of
  // the registration; ENODEV when the rail was lost.
  Result<uint32_t> key(uint32_t region);

 private:
  friend class VerbsTarget;
  static constexpr uint64_t kUnknown = UINT64_MAX;
  struct Entry {
    std::atomic<uint64_t> key = kUnknown;  // fits 32 bits once it is known
    std::unique_ptr<Region> region;        // guarded by mutex_
  };

  // Gives all regions back; key() says why from now on.
  void fail(const Error& error);

  const std::unique_ptr<Rail> rail_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> entries_;      // by region
  std::shared_ptr<Domain> domain_;  // guarded by mutex_
  std::optional<Error> failed_;     // guarded by mutex_
};

// Threads: any. It outlives the sessions and their pullers.
class VerbsTarget {
 public:
  // `regions_max`: how many regions the store can have. Errors: those of Fabric::open.
  static Result<std::unique_ptr<VerbsTarget>> create(Fabric& fabric, RailChoice choice,
                                                     size_t regions_max);
  ~VerbsTarget() { close(); }
  // Gives everything back, once no session is left; what the store takes afterwards is ignored.
  void close();

  // The store has taken a region. Returns at once: may be called with locks held.
  void region_mapped(uint32_t region, std::span<std::byte> memory);
  // Those that can be used now. When all were lost, tries to open what may have come back.
  std::vector<std::shared_ptr<TargetRail>> rails();
  VerbsCounters counters() const;
  VerbsTraffic& traffic() { return traffic_; }

 private:
  struct OpenRail {
    std::pair<size_t, size_t> number;  // of the opening, and in it
    std::shared_ptr<TargetRail> rail;
    std::set<uint32_t> regions;  // registered, or tried
    uint64_t bytes = 0;
    uint64_t region_count = 0;
  };

  VerbsTarget(Fabric& fabric, RailChoice choice, size_t regions_max);
  Status open();
  void lost(std::pair<size_t, size_t> number, const std::string& why);
  void register_regions();
  bool register_next(std::unique_lock<std::mutex>& lock);

  Fabric& fabric_;
  const RailChoice choice_;
  const size_t regions_max_;
  VerbsTraffic traffic_;

  std::mutex opening_mutex_;  // held by open()
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  size_t openings_ = 0;
  std::map<uint32_t, std::span<std::byte>> memory_;
  std::vector<OpenRail> rails_;
  std::set<std::pair<size_t, size_t>> lost_;
  std::vector<std::shared_ptr<TargetRail>> buried_;  // lost, to be destroyed by nobody's handler
  bool stopping_ = false;

  std::thread registrar_;  // last: ends before what it uses
};

}  // namespace ppmr
