// One port of a device, over librdmacm. Private to the fabric.
//
// A thread of the rail's own hears what the connection manager and the device say: who connects
// (when the rail listens), who disconnected, that the device goes away. What this thread finds is
// told to the rail's user, who must not destroy the rail in that call.
#pragma once

#include <map>
#include <mutex>
#include <thread>

#include "rdma_stream/mover/sink.h"
#include "rdma_stream/verbs/verbs_device.h"
#include "rdma_stream/verbs/verbs_resources.h"

namespace ppmr {

struct RailLimits {
  bool is_iwarp = false;
  uint8_t reads_served = 1;   // RDMA reads that a peer may have under way on a queue pair
  uint8_t reads_started = 1;  // that we may have
  ReadLimits reads;
};

// Threads: any.
class VerbsDomain final : public Domain, public std::enable_shared_from_this<VerbsDomain> {
 public:
  static Result<std::shared_ptr<VerbsDomain>> create(std::shared_ptr<Anchor> anchor,
                                                     const RailLimits& limits, std::string device);
  ~VerbsDomain() override { close(); }

  Result<std::unique_ptr<Region>> register_memory(std::span<std::byte> memory,
                                                  Rights rights) override;
  void close() override;

  // The target's half: connects, or says why not.
  Result<std::unique_ptr<ReadQueue>> connect(const RailAddress& own,
                                             const Rail::ConnectOptions& options, const Bell& stop);
  // The source's half: a peer that was admitted. Errors: of the queue pair; ECANCELED when closed.
  Status accept(VerbsPointer<rdma_cm_id> id, uint32_t stream, const rdma_conn_param& wanted);
  // A peer that has gone; an identifier that is not (any more) ours is ignored.
  void drop(const rdma_cm_id* id);

  ibv_pd* get() const { return domain_.get(); }
  const RailLimits& limits() const { return limits_; }
  const std::string& device() const { return device_; }
  ibv_context* context() const { return anchor_->context(); }

 private:
  struct Served {  // a connection over which the peer reads; destroyed from the last to the first
    VerbsPointer<ibv_cq> completions;
    VerbsPointer<rdma_cm_id> id;
  };

  VerbsDomain(std::shared_ptr<Anchor> anchor, RailLimits limits, std::string device)
      : anchor_(std::move(anchor)), limits_(limits), device_(std::move(device)) {}

  // Destroyed from the last to the first.
  const std::shared_ptr<Anchor> anchor_;
  const RailLimits limits_;
  const std::string device_;
  VerbsPointer<ibv_pd> domain_;
  std::mutex mutex_;
  bool closed_ = false;                // guarded by mutex_
  std::map<uint32_t, Served> served_;  // by stream; guarded by mutex_
};

class VerbsRail final : public Rail {
 public:
  // Listens when `events` has an admit(). `index` is what its events name it by.
  static Result<std::unique_ptr<VerbsRail>> open(const RdmaPort& port, const RailAddress& address,
                                                 size_t index,
                                                 std::shared_ptr<const RailEvents> events);
  ~VerbsRail() override;

  const std::string& device() const override { return device_; }
  const RailAddress& address() const override { return address_; }
  Result<std::shared_ptr<Domain>> create_domain() override;
  Result<std::unique_ptr<ReadQueue>> connect(const std::shared_ptr<Domain>& domain,
                                             const ConnectOptions& options,
                                             const Bell& stop) override;

 private:
  VerbsRail(const RdmaPort& port, RailAddress address, size_t index,
            std::shared_ptr<const RailEvents> events, Bell stop);
  void watch();
  // Empty while the device is there.
  std::string hear_connections(Anchor& anchor);
  std::string hear_device(Anchor& anchor);
  void connect_request(VerbsPointer<rdma_cm_event> event);

  const std::string device_;
  RailAddress address_;
  const size_t index_;
  const std::shared_ptr<const RailEvents> events_;
  RailLimits limits_;
  const Bell stop_;

  std::mutex mutex_;
  std::shared_ptr<Anchor> anchor_;  // null: lost; guarded by mutex_

  std::map<const rdma_cm_id*, std::weak_ptr<VerbsDomain>> admitted_;  // the thread's
  std::thread thread_;  // last: ends before what it uses
};

}  // namespace ppmr
