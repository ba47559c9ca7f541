// The target's half of the verbs mover: fetches the chunks of one session by RDMA READ, over
// several connections (queue pairs) that are spread over the rails of both sides. Each connection
// has a thread that posts reads, waits for their completion (it polls briefly, then sleeps) and
// verifies the bytes.
//
// The puller does not reopen a connection that breaks. It first destroys the queue pair, so no
// further byte lands. Then the pulls of the connection return to the queue, where the other
// connections take them. When no connection is left, the session continues over TCP until it ends,
// or with --transport verbs ends at once.
//
// Rejected: reopening connections within a session. It needs attempt counters, back-off and a
// return from TCP to verbs, although a queue pair survives short interruptions of the link without
// help.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "rdma_stream/mover/mover.h"
#include "rdma_stream/verbs/verbs_target.h"
#include "rdma_stream/verbs/verbs_window.h"

namespace ppmr {

// Threads: the same as for Puller.
class VerbsPuller final : public Puller {
 public:
  struct Options {
    wire::TransportOffer offer;  // accepted by check()
    uint32_t stream_count = 2;
    std::chrono::milliseconds connect_timeout{2000};
    // A read that is not answered within this time breaks its connection.
    std::chrono::milliseconds read_timeout{5000};
  };
  // Called on the puller's threads. Each event is reported at most once, `available` first.
  struct Events {
    // Called when the first connection is open.
    std::function<void(const std::string& description)> available;
    // Called when no connection could be opened, or the last one broke. The puller takes no further
    // pull.
    std::function<void(const Error& why)> unavailable;
  };
  // Validates an offer from the wire: counts, addresses and sizes. Errors: EPROTO.
  static Status check(const wire::TransportOffer& offer, uint32_t slot_count,
                      uint32_t chunk_size_bytes);

  // Opens the connections in the background. Errors: those of WakeEvent::create.
  static Result<std::unique_ptr<VerbsPuller>> create(Options options, VerbsTarget& target,
                                                     PullQueue& queue, Events events);
  ~VerbsPuller() override { finish(); }

  void pulls_queued() override;
  void stop() override;  // closes all connections
  void finish() override;

 private:
  // Only the stream's own thread uses it, except for `wake` and `asleep`.
  struct Stream {
    explicit Stream(WakeEvent event) : wake(std::move(event)) {}
    WakeEvent wake;
    std::atomic<bool> asleep = false;  // if true, pulls_queued() clears it and signals `wake`
    ReadWindow window;
    std::shared_ptr<TargetRail> rail;
    uint32_t peer_key = 0;  // key of the pool on the source's rail
  };

  VerbsPuller(Options options, VerbsTarget& target, PullQueue& queue, Events events)
      : options_(std::move(options)), target_(target), queue_(queue), events_(std::move(events)) {}

  void run_stream(uint32_t index);
  Result<std::unique_ptr<ReadQueue>> connect(uint32_t index);
  // Returns why the connection ended.
  Error serve(Stream& stream, ReadQueue& queue);
  Error use_connection(Stream& stream, std::unique_ptr<ReadQueue> queue);
  Result<bool> fill(Stream& stream, ReadQueue& queue);
  Status post(Stream& stream, ReadQueue& queue, const Pull& pull);
  Result<bool> reap(Stream& stream, ReadQueue& queue, bool after_event);

  const Options options_;
  VerbsTarget& target_;
  PullQueue& queue_;
  const Events events_;

  std::atomic<bool> stopping_ = false;
  std::atomic<bool> available_ = false;
  std::atomic<size_t> streams_left_ = 0;

  std::vector<std::unique_ptr<Stream>> streams_;
  // Declared last: the threads end before the members that they use.
  std::vector<std::thread> threads_;
};

}  // namespace ppmr
