#include "rdma_stream/verbs/verbs_puller.h"

#include <algorithm>
#include <array>

#include "rdma_stream/connection/session_proof.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The time for which a thread polls for completions before it sleeps: about the cost of a sleep and
// a wake-up. A thread that polls longer takes the core from the processes that produce the bytes.
constexpr std::chrono::microseconds kPollTime{20};
// A sleeping thread without reads in flight wakes up after this time, unless `wake` wakes it
// earlier.
constexpr milliseconds kIdleTime{1000};

}  // namespace

// ---- Start and end -----------------------------------------------------------------------------

Status VerbsPuller::check(const wire::TransportOffer& offer, uint32_t slot_count,
                          uint32_t chunk_size_bytes) {
  const auto bad = [](const std::string& what) {
    return failure(EPROTO, "invalid RDMA offer from the source: " + what);
  };
  if (offer.rail_count > wire::kRailsMax) return bad("too many rails");
  if (offer.rail_count == 0) return {};
  if (offer.slot_stride < chunk_size_bytes || offer.slot_stride > UINT32_MAX) {
    return bad("slots of " + std::to_string(offer.slot_stride) + " bytes for chunks of " +
               std::to_string(chunk_size_bytes));
  }
  if (offer.pool_address > UINT64_MAX - offer.slot_stride * slot_count) {
    return bad("the pool exceeds the address space");
  }
  for (uint32_t i = 0; i < offer.rail_count; ++i) {
    if (offer.rails[i].port == 0) return bad("a rail without a port");
  }
  return {};
}

Result<std::unique_ptr<VerbsPuller>> VerbsPuller::create(Options options, VerbsTarget& target,
                                                         PullQueue& queue, Events events) {
  // Open at least one connection on every rail of the source and of the target.
  const auto rails = std::max<size_t>(target.rails().size(), options.offer.rail_count);
  const auto streams = std::max<uint32_t>(options.stream_count, static_cast<uint32_t>(rails));
  std::unique_ptr<VerbsPuller> puller(
      new VerbsPuller(std::move(options), target, queue, std::move(events)));
  for (uint32_t i = 0; i < std::min(streams, wire::kStreamsMax); ++i) {
    auto wake = WakeEvent::create();
    if (!wake) return failure(wake.error());
    puller->streams_.push_back(std::make_unique<Stream>(std::move(*wake)));
  }
  puller->streams_left_ = puller->streams_.size();
  for (uint32_t i = 0; i < puller->streams_.size(); ++i) {
    puller->threads_.emplace_back([self = puller.get(), i] { self->run_stream(i); });
  }
  return puller;
}

void VerbsPuller::stop() {
  stopping_ = true;
  for (auto& stream : streams_) stream->wake.signal();
}

void VerbsPuller::finish() {
  stop();
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void VerbsPuller::pulls_queued() {
  for (auto& stream : streams_) {
    if (stream->asleep.load(std::memory_order_seq_cst) && stream->asleep.exchange(false)) {
      stream->wake.signal();
      return;
    }
  }
}

// ---- Connections -------------------------------------------------------------------------------

void VerbsPuller::run_stream(uint32_t index) {
  Error why;
  if (auto queue = connect(index)) {
    if (!available_.exchange(true)) events_.available((*queue)->description());
    why = use_connection(*streams_[index], std::move(*queue));
  } else {
    why = queue.error();
  }
  if (stopping_) return;
  spdlog::warn("RDMA connection {} ended: {}", index, why.message);
  if (--streams_left_ == 0) events_.unavailable(why);
}

Error VerbsPuller::use_connection(Stream& stream, std::unique_ptr<ReadQueue> queue) {
  ++target_.traffic().connected;
  ++target_.traffic().connections;
  Error why = serve(stream, *queue);
  // Destroy the queue pair first: the device must not write to the pulls' memory afterwards.
  queue.reset();
  stream.rail.reset();
  // If this stream was woken but took no pull, wake another stream instead.
  stream.asleep.store(false);
  stream.wake.clear();
  pulls_queued();
  for (Pull pull; stream.window.give_back(pull);) queue_.lost(pull);
  --target_.traffic().connections;
  return why;
}

Result<std::unique_ptr<ReadQueue>> VerbsPuller::connect(uint32_t index) {
  const auto rails = target_.rails();
  if (rails.empty()) return failure(ENODEV, "the target has no RDMA device left");
  const wire::Rail& partner = options_.offer.rails[index % options_.offer.rail_count];
  wire::RdmaHello hello;
  hello.stream = static_cast<uint16_t>(index);
  Rail::ConnectOptions options;
  options.peer.ip = partner.address;
  options.peer.port = partner.port;
  options.timeout = options_.connect_timeout;
  options.read_timeout = options_.read_timeout;
  options.stream = index;
  // Prefer a rail in the network of the source's rail; any other rail may have a route to it.
  std::vector<std::shared_ptr<TargetRail>> order;
  for (const bool near : {true, false}) {
    for (size_t i = 0; i < rails.size(); ++i) {
      const auto& rail = rails[(index + i) % rails.size()];
      if (rail->rail().address().same_network(partner.address) == near) order.push_back(rail);
    }
  }
  Error last{ENETUNREACH, "no RDMA device reaches the source"};
  for (auto& rail : order) {
    if (stopping_) return failure(ECANCELED, "the session has ended");
    const auto domain = rail->domain();
    if (!domain) continue;
    ++hello.attempt;
    const RdmaEnds ends{partner.address, partner.port, rail->rail().address().ip};
    hello.proof = rdma_proof(options_.offer.secret, ends, hello.stream, hello.attempt);
    const auto private_data = wire::encode(hello, wire::kRdmaHelloBytes);
    options.private_data = private_data;
    auto queue = rail->rail().connect(domain, options, streams_[index]->wake);
    if (queue) {
      streams_[index]->rail = rail;
      streams_[index]->peer_key = partner.key;
      return queue;
    }
    last = queue.error();
  }
  return failure(last);
}

// ---- Reading -----------------------------------------------------------------------------------

Error VerbsPuller::serve(Stream& stream, ReadQueue& queue) {
  // The last time at which a read completed, or at which reads were posted while none was in
  // flight.
  auto progress = Clock::now();
  auto busy = progress;  // when this thread last posted or completed a read
  // True when `wake` and the device can wake this thread. The thread then checks once more for
  // earlier events before it sleeps.
  bool armed = false;
  bool woken = false;
  while (!stopping_) {
    const bool was_empty = stream.window.empty();
    const auto filled = fill(stream, queue);
    if (!filled) return filled.error();
    const auto reaped = reap(stream, queue, woken);
    if (!reaped) return reaped.error();
    woken = false;
    const auto now = Clock::now();
    if (*reaped || (was_empty && *filled)) progress = now;
    if (*filled || *reaped) {
      busy = now;
      armed = false;
      stream.asleep.store(false, std::memory_order_relaxed);
      continue;
    }
    milliseconds rest = kIdleTime;
    if (!stream.window.empty()) {
      if (now - busy < kPollTime) continue;
      rest = std::chrono::ceil<milliseconds>(progress + options_.read_timeout - now);
      if (rest <= milliseconds(0)) {
        return Error{ETIMEDOUT, queue.description() + ": no answer to a read within " +
                                    std::to_string(options_.read_timeout.count()) + " ms"};
      }
    }
    if (!armed) {
      // From here on, events wake this thread. Events just before this point do not, so check for
      // them once more. A thread whose window is full does not set `asleep`, so that pulls_queued()
      // wakes a thread with room.
      stream.asleep.store(stream.window.has_room(queue.limits()), std::memory_order_seq_cst);
      if (Status set = queue.arm(); !set) return set.error();
      armed = true;
      continue;
    }
    if (Status waited = queue.wait(rest, stream.wake); !waited) return waited.error();
    stream.wake.clear();
    stream.asleep.store(false, std::memory_order_relaxed);
    armed = false;
    woken = true;
    busy = Clock::now();
  }
  return Error{ECANCELED, "the session has ended"};
}

// Posts reads while the window has room. Returns whether it posted any.
Result<bool> VerbsPuller::fill(Stream& stream, ReadQueue& queue) {
  bool filled = false;
  Pull pull;
  while (stream.window.has_room(queue.limits()) && queue_.take(pull, /*wait=*/false)) {
    filled = true;
    if (Status posted = post(stream, queue, pull); !posted) return failure(posted.error());
  }
  return filled;
}

Status VerbsPuller::post(Stream& stream, ReadQueue& queue, const Pull& pull) {
  std::array<uint32_t, Landing::kPiecesMax> keys;
  Status known;
  for (size_t i = 0; i < pull.pieces.size() && known; ++i) {
    auto key = stream.rail->key(pull.pieces[i].region);
    if (!key) {
      known = failure(key.error());
    } else {
      keys[i] = *key;
    }
  }
  if (!known) {
    queue_.lost(pull);
    return known;
  }
  // The session validated the slot and the range within it when the chunk was announced.
  const uint64_t address =
      options_.offer.pool_address + pull.slot * options_.offer.slot_stride + pull.slot_offset;
  auto& traffic = target_.traffic();
  return stream.window.add(pull, std::span(keys).first(pull.pieces.size()), address,
                           stream.peer_key, queue.limits(), [&](const ReadWork& work) {
                             traffic.reads_posted.fetch_add(1, std::memory_order_relaxed);
                             return queue.post(work);
                           });
}

// Handles completed reads. Returns whether there were any.
Result<bool> VerbsPuller::reap(Stream& stream, ReadQueue& queue, bool after_event) {
  std::array<ReadCompletion, ReadWindow::kPullsMax> completions;
  const auto count = queue.poll(completions);
  if (!count) return failure(count.error());
  auto& traffic = target_.traffic();
  (after_event ? traffic.completions_by_event : traffic.completions_by_poll)
      .fetch_add(*count, std::memory_order_relaxed);
  for (const ReadCompletion& completion : std::span(completions).first(*count)) {
    if (completion.error != nullptr) {
      return failure(EIO, queue.description() + ": RDMA read: " + completion.error);
    }
    Pull pull;
    switch (stream.window.complete(completion.id, pull)) {
      case ReadWindow::Outcome::kUnknown:
        ++traffic.strange_completions;
        spdlog::warn("{}: ignored the completion of an unknown read", queue.description());
        break;
      case ReadWindow::Outcome::kPart:
        break;
      case ReadWindow::Outcome::kWhole:
        traffic.bytes_read.fetch_add(pull.length, std::memory_order_relaxed);
        queue_.completed(pull);
        break;
    }
  }
  return *count > 0;
}

}  // namespace ppmr
