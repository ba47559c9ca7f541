// One port of a device, over librdmacm. Private to the fabric.
//
// Each rail has a thread that receives the events of the connection manager and of the device: a
// peer connects (if the rail listens) or disconnects, the device is removed. The thread calls the
// handlers of RailEvents, which must not destroy the rail.
#pragma once

#include <map>
#include <thread>

#include "base/mutex.h"
#include "rdma_stream/mover/sink.h"
#include "rdma_stream/verbs/verbs_device.h"
#include "rdma_stream/verbs/verbs_resources.h"

namespace ppmr {

struct RailLimits {
  // Limits for the RDMA reads in flight on one queue pair.
  uint8_t reads_served = 1;   // reads that the peer posts
  uint8_t reads_started = 1;  // reads that this side posts
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

  // The target's half: opens a connection. Errors: those of Rail::connect.
  Result<std::unique_ptr<ReadQueue>> connect(const RailAddress& own,
                                             const Rail::ConnectOptions& options,
                                             const WakeEvent& stop);
  // The source's half: accepts an admitted peer. Errors: those of creating a queue pair; ECANCELED
  // after close().
  Status accept(VerbsPointer<rdma_cm_id> id, uint32_t stream, const rdma_conn_param& wanted);
  // Ends the connection of a peer that disconnected. Ignores an unknown identifier.
  void drop(const rdma_cm_id* id);

  ibv_pd* get() const { return domain_.get(); }
  const RailLimits& limits() const { return limits_; }
  const std::string& device() const { return device_; }
  ibv_context* context() const { return anchor_->context(); }

 private:
  // A connection over which the peer reads. Its members are destroyed from the last to the first.
  struct Served {
    VerbsPointer<ibv_cq> completions;
    VerbsPointer<rdma_cm_id> id;
  };

  VerbsDomain(std::shared_ptr<Anchor> anchor, RailLimits limits, std::string device)
      : anchor_(std::move(anchor)), limits_(limits), device_(std::move(device)) {}

  // The members are destroyed from the last to the first.
  const std::shared_ptr<Anchor> anchor_;
  const RailLimits limits_;
  const std::string device_;
  VerbsPointer<ibv_pd> domain_;
  Mutex mutex_;
  bool closed_ PPMR_GUARDED_BY(mutex_) = false;
  std::map<uint32_t, Served> served_ PPMR_GUARDED_BY(mutex_);  // by stream
};

class VerbsRail final : public Rail {
 public:
  static Result<std::unique_ptr<VerbsRail>> open(const RdmaPort& port, const RailAddress& address,
                                                 RailRole role);
  ~VerbsRail() override;

  void start(RailEvents events) override;
  const std::string& device() const override { return device_; }
  const RailAddress& address() const override { return address_; }
  Result<std::shared_ptr<Domain>> create_domain() override;
  Result<std::unique_ptr<ReadQueue>> connect(const std::shared_ptr<Domain>& domain,
                                             const ConnectOptions& options,
                                             const WakeEvent& stop) override;

 private:
  VerbsRail(const RdmaPort& port, RailAddress address, Anchor anchor, WakeEvent stop);
  void run();
  // These functions return the reason why the device was lost, or an empty text if it was not lost.
  std::string handle_connection_events(Anchor& anchor);
  std::string handle_device_events(Anchor& anchor);
  void connect_request(VerbsPointer<rdma_cm_event> event);

  const std::string device_;
  const RailAddress address_;
  RailLimits limits_;  // constant after construction
  const WakeEvent stop_;

  Mutex mutex_;
  std::shared_ptr<Anchor> anchor_ PPMR_GUARDED_BY(mutex_);  // null: the device is lost

  // Only the thread uses these members.
  RailEvents events_;
  std::map<const rdma_cm_id*, std::weak_ptr<VerbsDomain>> admitted_;

  std::thread thread_;  // declared last: the thread ends before the members that it uses
};

}  // namespace ppmr
