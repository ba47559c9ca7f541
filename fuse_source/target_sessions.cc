#include "fuse_source/target_sessions.h"

#include "third_party/spdlog.h"

namespace ppmr {

void OutletTotals::add(const OutletCounters& session) {
  bytes += session.verified_bytes;
  wire_bytes += session.wire_bytes;
  chunks += session.chunks;
  inline_chunks += session.inline_chunks;
  reconnections += session.reconnections;
}

Result<std::unique_ptr<TargetSessions>> TargetSessions::create(
    const SourceOptions& options, BufferPool& pool, std::unique_ptr<Connector> connector) {
  if (!options.discard && !connector) {
    auto made = options.security->connector(options.target_address, PeerRole::kSource);
    if (!made) return failure(made.error());
    connector = std::move(*made);
  }
  std::unique_ptr<TargetSessions> sessions(new TargetSessions(options, pool, std::move(connector)));
  if (options.discard) return sessions;
  auto devices =
      SourceDevices::open(options.transport.mode, options.transport.rails, pool.memory().size());
  if (!devices) return failure(devices.error());
  sessions->devices_ = std::move(*devices);
  sessions->sender_.transport = sessions->devices_->transport();
  return sessions;
}

TargetSessions::TargetSessions(const SourceOptions& options, BufferPool& pool,
                               std::unique_ptr<Connector> connector)
    : discards_(options.discard),
      target_address_(options.target_address),
      reconnect_interval_(options.reconnect_interval),
      sender_(options.sender),
      pool_(pool),
      connector_(std::move(connector)) {}

Status TargetSessions::start(SenderEvents events) {
  {
    MutexLock lock(gate_->mutex);
    gate_->events = std::move(events);
  }
  auto outlet = connect();
  if (!outlet) return failure(outlet.error());
  {
    MutexLock lock(mutex_);
    present_ = *outlet;
  }
  if (discards_) return {};
  reconnector_.emplace(reconnect_interval_, [this]() -> Status {
    const auto connected = live();
    return connected ? Status{} : failure(connected.error());
  });
  return {};
}

void TargetSessions::stop() {
  reconnector_.reset();
  MutexLock lock(gate_->mutex);
  gate_->events.reset();
}

Result<std::shared_ptr<Outlet>> TargetSessions::connect() {
  if (discards_) return std::make_shared<DiscardOutlet>();
  const auto passed = [gate = gate_](auto event) {
    return [gate, event](auto... values) {
      MutexLock lock(gate->mutex);
      if (gate->events) ((*gate->events).*event)(values...);
    };
  };
  auto sender = Sender::open(sender_, pool_, *connector_,
                             {.seal_requested = passed(&SenderEvents::seal_requested),
                              .checkpoint_removed = passed(&SenderEvents::checkpoint_removed),
                              .bytes_wanted = passed(&SenderEvents::bytes_wanted)});
  if (!sender) return failure(sender.error());
  return std::shared_ptr<Outlet>(std::move(*sender));
}

Result<std::shared_ptr<Outlet>> TargetSessions::live() {
  MutexLock one_at_a_time(one_at_a_time_);
  {
    MutexLock lock(mutex_);
    if (present_->status()) return present_;
  }
  pool_.wipe();  // the new session may be with another target
  auto outlet = connect();
  if (!outlet) return failure(EIO, outlet.error().message);
  spdlog::info("new session with {}", target_address_);
  MutexLock lock(mutex_);
  earlier_.add(present_->counters());
  present_ = *outlet;
  return present_;
}

std::shared_ptr<Outlet> TargetSessions::present() {
  MutexLock lock(mutex_);
  return present_;
}

OutletTotals TargetSessions::totals() {
  MutexLock lock(mutex_);
  OutletTotals totals = earlier_;
  totals.add(present_->counters());
  return totals;
}

}  // namespace ppmr
