// The sessions of a source mount with its target: one after another, because a failed session stays
// failed. A checkpoint stays in the session in which it began. A new checkpoint gets a session that
// has not failed.
#pragma once

#include <memory>
#include <optional>

#include "base/mutex.h"
#include "buffer_pool/buffer_pool.h"
#include "fuse_source/reconnector.h"
#include "fuse_source/source_options.h"
#include "rdma_stream/session/devices.h"
#include "rdma_stream/session/outlet.h"
#include "rdma_stream/session/sender.h"

namespace ppmr {

// Sums over all sessions of a mount. They never decrease.
struct OutletTotals {
  uint64_t bytes = 0;
  uint64_t wire_bytes = 0;
  uint64_t chunks = 0;
  uint64_t inline_chunks = 0;
  uint64_t reconnections = 0;

  void add(const OutletCounters& session);
};

// Threads: one thread calls start() and stop(); any thread may call the other members.
class TargetSessions {
 public:
  // Opens the RDMA devices, which the sessions offer to the target. `connector` connects for a
  // process that has dropped its rights; null: create() makes a connector. `pool` lives longer than
  // this object.
  static Result<std::unique_ptr<TargetSessions>> create(const SourceOptions& options,
                                                        BufferPool& pool,
                                                        std::unique_ptr<Connector> connector);
  ~TargetSessions() { stop(); }

  // Connects. From then on, connects again to a lost target, even while no checkpoint begins.
  // Errors: those of the connection. Throws std::system_error when the thread cannot be started.
  Status start(SenderEvents events);
  // After stop() has returned, no function of `events` runs. A session may end later, because its
  // checkpoints have references to it.
  void stop();

  // Returns the outlet of a session that has not failed, and opens a session if there is none.
  // Errors: EIO.
  Result<std::shared_ptr<Outlet>> live();
  // Returns the outlet of the newest session. Not null after start().
  std::shared_ptr<Outlet> present();
  OutletTotals totals();
  // Null with --discard.
  const SourceDevices* devices() const { return devices_.get(); }

 private:
  // Passes the events of all sessions to `events`, until stop() closes the gate.
  struct EventGate {
    Mutex mutex;
    std::optional<SenderEvents> events PPMR_GUARDED_BY(mutex);  // empty: closed
  };

  TargetSessions(const SourceOptions& options, BufferPool& pool,
                 std::unique_ptr<Connector> connector);
  Result<std::shared_ptr<Outlet>> connect();

  const bool discards_;
  const std::string target_address_;
  const std::chrono::milliseconds reconnect_interval_;
  SenderOptions sender_;
  BufferPool& pool_;
  const std::unique_ptr<Connector> connector_;
  std::unique_ptr<SourceDevices> devices_;
  const std::shared_ptr<EventGate> gate_ = std::make_shared<EventGate>();

  Mutex one_at_a_time_;  // held while a session opens
  Mutex mutex_;
  std::shared_ptr<Outlet> present_ PPMR_GUARDED_BY(mutex_);
  OutletTotals earlier_ PPMR_GUARDED_BY(mutex_);  // of the sessions before the present one
  std::optional<Reconnector> reconnector_;        // declared last: its thread uses the members
};

}  // namespace ppmr
