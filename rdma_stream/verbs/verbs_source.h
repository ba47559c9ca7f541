// RDMA at the source, shared by its sessions: the rails it listens on, and who may read what.
//
// A session lends the pool to its target: on every rail a protection domain of its own with the
// pool registered for reading, and a secret that admits connections to it. The loan's end ends the
// connections and takes the keys back, so that nobody reads a slot of a session that is over.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "buffer_pool/buffer_pool.h"
#include "rdma_stream/verbs/verbs.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

class VerbsSource;

// Threads: created and destroyed by one. It ends before its VerbsSource and its pool.
class PoolLoan {
 public:
  ~PoolLoan();
  PoolLoan(const PoolLoan&) = delete;
  PoolLoan& operator=(const PoolLoan&) = delete;

  // What the target is to be told; the mode is the caller's.
  const wire::TransportOffer& offer() const { return offer_; }

 private:
  friend class VerbsSource;
  struct OnRail {  // empty when the rail was lost
    size_t rail = 0;
    std::shared_ptr<Domain> domain;
    std::unique_ptr<Region> region;
  };
  PoolLoan(VerbsSource& source, size_t opening) : source_(source), opening_(opening) {}

  VerbsSource& source_;
  const size_t opening_;
  wire::TransportOffer offer_;
  uint64_t pool_bytes_ = 0;
  uint32_t stream_count_ = 0;
  std::vector<OnRail> rails_;  // guarded by the source's mutex
};

// Threads: any.
class VerbsSource {
 public:
  struct Counters {
    uint64_t rails = 0;
    uint64_t registered_bytes = 0;
    uint64_t registered_regions = 0;
    uint64_t admitted = 0;  // connections, since the start
    uint64_t refused = 0;
  };
  // Listens. Errors: those of Fabric::open.
  static Result<std::unique_ptr<VerbsSource>> create(Fabric& fabric, RailChoice choice);
  ~VerbsSource();

  // Lends the pool to a session with `stream_count` connections. When all rails were lost, tries to
  // open what may have come back. Errors: of opening; of registering: what to raise.
  Result<std::unique_ptr<PoolLoan>> lend(const BufferPool& pool, uint32_t stream_count);
  Counters counters() const;

 private:
  friend class PoolLoan;
  VerbsSource(Fabric& fabric, RailChoice choice) : fabric_(fabric), choice_(std::move(choice)) {}
  Status open();
  Result<Admission> admit(size_t opening, size_t rail, std::span<const std::byte> private_data);
  void lost(size_t opening, size_t rail, const std::string& why);
  void end(PoolLoan& loan);

  Fabric& fabric_;
  const RailChoice choice_;

  std::mutex opening_mutex_;  // held by open()
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  size_t opening_ = 0;                         // how often the rails were opened
  std::vector<std::shared_ptr<Rail>> rails_;   // null: lost
  std::vector<std::shared_ptr<Rail>> buried_;  // lost, to be destroyed by nobody's handler
  std::set<size_t> lost_early_;                // before open() was done
  std::vector<PoolLoan*> loans_;
  uint64_t admitted_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace ppmr
