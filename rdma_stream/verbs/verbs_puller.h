// The target's half of the verbs mover: brings the chunks of one session by RDMA READ, over several
// connections (queue pairs) that are spread over the rails of both sides. One thread a connection
// posts reads, waits for them (polling for moments, then asleep), verifies what came.
//
// A connection that breaks is ended, so that no byte lands any more; then its pulls are given back,
// and it is made anew in the background, as long as the session lives. The session hears when the
// first connection is there, and when there was none for too long.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rdma_stream/connection/session_timings.h"
#include "rdma_stream/mover/mover.h"
#include "rdma_stream/verbs/verbs_target.h"
#include "rdma_stream/verbs/verbs_window.h"

namespace ppmr {

// Threads: pulls_queued(), stop() and finish() by any; the rest is its own.
class VerbsPuller {
 public:
  struct Options {
    wire::TransportOffer offer;  // check()ed
    uint32_t stream_count = 2;
    // Uses `verbs_outage_max`, `verbs_connect_max`, `retry_interval` and, as the time after which
    // an unanswered read breaks its connection, `connection_silence_max`.
    SessionTimings timings{};
  };
  // Called on the puller's threads, one at a time.
  struct Events {
    std::function<void(const std::string& description)> available;
    std::function<void(const Error& why)> unavailable;
  };
  // Whether an offer can be believed: counts, addresses and sizes. Errors: EPROTO.
  static Status check(const wire::TransportOffer& offer, uint32_t slot_count,
                      uint32_t chunk_size_bytes);

  // Errors: those of Bell::create.
  static Result<std::unique_ptr<VerbsPuller>> create(Options options, VerbsTarget& target,
                                                     PullQueue& queue, Events events);
  ~VerbsPuller() { finish(); }

  // Something can be taken from the queue. Cheap: may be called with locks held.
  void pulls_queued();
  // The session is over: no connection is made any more, those there are end.
  void stop();
  // The same, and gives all pulls back; no thread uses the queue when it returns.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  struct Stream {
    explicit Stream(Bell wake) : bell(std::move(wake)) {}
    Bell bell;
    std::atomic<bool> asleep = false;  // whoever clears it rings the bell
    ReadWindow window;                 // the thread's
    std::shared_ptr<TargetRail> rail;  // of the present connection; the thread's
    uint32_t peer_key = 0;             // of that rail's partner at the source; the thread's
  };

  VerbsPuller(Options options, VerbsTarget& target, PullQueue& queue, Events events)
      : options_(std::move(options)), target_(target), queue_(queue), events_(std::move(events)) {}

  void run_stream(uint32_t index);
  Result<std::unique_ptr<ReadQueue>> connect(uint32_t index);
  // Until the connection breaks or the puller stops; `fruitful`: something was read over it.
  Error serve(Stream& stream, ReadQueue& queue, bool& fruitful);
  Result<bool> fill(Stream& stream, ReadQueue& queue);
  Status post(Stream& stream, ReadQueue& queue, const Pull& pull);
  Result<bool> reap(Stream& stream, ReadQueue& queue, bool after_event);
  void wait_to_retry(Stream& stream, std::chrono::milliseconds time);
  void connected(const std::string& description);
  void disconnected();
  void failed(const Error& why, bool for_good);

  const Options options_;
  VerbsTarget& target_;
  PullQueue& queue_;
  const Events events_;

  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  // Guarded by mutex_.
  uint32_t connections_ = 0;
  bool available_ = false;
  bool told_ = false;              // of either
  uint32_t first_attempts_ = 0;    // streams that have not tried yet
  uint32_t fruitless_ = 0;         // connections in a row
  Clock::time_point alone_since_;  // when the last connection broke

  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::thread> threads_;  // last: ends before what it uses
};

}  // namespace ppmr
