// RDMA at the source, shared by its sessions: the rails on which it listens, and the peers that may
// read.
//
// A session lends the pool to its target. A loan has a protection domain on each rail, with the
// pool registered for reading, and a secret. The source admits a connection to these domains once
// for each proof of the secret. The end of the loan ends the connections and revokes the keys, so
// no peer reads a slot after the end of its session.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "buffer_pool/buffer_pool.h"
#include "rdma_stream/verbs/verbs.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

class VerbsSource;

struct SourceRail {
  bool lost = false;           // guarded by the VerbsSource's mutex
  std::unique_ptr<Rail> rail;  // declared last: the rail's thread uses this SourceRail
};

// Threads: one thread creates and destroys a loan. Destroy it before its VerbsSource and its pool.
class PoolLoan {
 public:
  ~PoolLoan();
  PoolLoan(const PoolLoan&) = delete;
  PoolLoan& operator=(const PoolLoan&) = delete;

  // Returns the offer to the target; the caller sets the mode.
  const wire::TransportOffer& offer() const { return offer_; }

 private:
  friend class VerbsSource;
  // The members are destroyed from the last to the first.
  struct OnRail {
    const SourceRail* rail = nullptr;  // null when the rail was lost
    std::shared_ptr<Domain> domain;
    std::unique_ptr<Region> region;
  };
  explicit PoolLoan(VerbsSource& source) : source_(source) {}

  VerbsSource& source_;
  wire::TransportOffer offer_;
  uint64_t pool_bytes_ = 0;
  // Guarded by the source's mutex.
  std::vector<OnRail> rails_;
  std::vector<uint64_t> last_attempts_;  // the last accepted attempt number, by stream
};

// Threads: any.
class VerbsSource {
 public:
  struct Counters {
    uint64_t rails = 0;
    uint64_t registered_bytes = 0;
    uint64_t registered_regions = 0;
    uint64_t admitted = 0;  // number of connections since the start
    uint64_t refused = 0;
  };
  // Opens the rails and listens. Errors: those of Fabric::open.
  static Result<std::unique_ptr<VerbsSource>> create(Fabric& fabric, RailChoice choice);
  ~VerbsSource();

  // Lends the pool to a session with `stream_count` connections. If all rails were lost, opens them
  // again. Errors: those of opening; those of registering, which name the limit to raise.
  Result<std::unique_ptr<PoolLoan>> lend(const BufferPool& pool, uint32_t stream_count);
  Counters counters() const;

 private:
  friend class PoolLoan;
  using Rails = std::vector<std::unique_ptr<SourceRail>>;

  VerbsSource(Fabric& fabric, RailChoice choice) : fabric_(fabric), choice_(std::move(choice)) {}
  Status open() PPMR_REQUIRES(lending_mutex_);
  Result<Admission> admit(const SourceRail& rail, const RailAddress& peer,
                          std::span<const std::byte> private_data);
  Result<Admission> admit_locked(PoolLoan& loan, const SourceRail& rail,
                                 const wire::RdmaHello& hello) PPMR_REQUIRES(mutex_);
  void lose(SourceRail& rail, const std::string& why);
  void end(PoolLoan& loan);

  Fabric& fabric_;
  const RailChoice choice_;

  // rails_ changes only with both mutexes held, so a thread that holds lending_mutex_ reads it
  // without mutex_. The analysis cannot express that.
  const Rails& lending_rails() const PPMR_REQUIRES(lending_mutex_) PPMR_NO_THREAD_SAFETY_ANALYSIS {
    return rails_;
  }

  Mutex lending_mutex_;  // held by lend()
  mutable Mutex mutex_;
  Rails rails_ PPMR_GUARDED_BY(mutex_);
  std::vector<PoolLoan*> loans_ PPMR_GUARDED_BY(mutex_);
  uint64_t admitted_ PPMR_GUARDED_BY(mutex_) = 0;
  uint64_t refused_ PPMR_GUARDED_BY(mutex_) = 0;
};

}  // namespace ppmr
