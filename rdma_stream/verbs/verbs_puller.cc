#include "rdma_stream/verbs/verbs_puller.h"

#include <poll.h>

#include <algorithm>
#include <array>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

// How long completions are polled for before the thread sleeps: about what falling asleep and being
// woken costs. Longer would take the core from those who make the bytes.
constexpr std::chrono::microseconds kPollTime{20};
// An idle thread looks after so long whether it is still wanted, though the bell tells.
constexpr milliseconds kIdleTime{1000};
// After so many connections in a row over which nothing could be read they are not tried any more.
constexpr uint32_t kFruitlessMax = 4;
// Verbs that are unavailable are tried again this much more rarely.
constexpr int kRareFactor = 10;

}  // namespace

// ---- Beginning and end -------------------------------------------------------------------------

Status VerbsPuller::check(const wire::TransportOffer& offer, uint32_t slot_count,
                          uint32_t chunk_size_bytes) {
  const auto bad = [](const std::string& what) {
    return failure(EPROTO, "the source's offer of RDMA: " + what);
  };
  if (offer.rail_count > wire::kRailsMax) return bad("too many rails");
  if (offer.rail_count == 0) return {};
  if (offer.slot_stride < chunk_size_bytes || offer.slot_stride > UINT32_MAX) {
    return bad("slots of " + std::to_string(offer.slot_stride) + " bytes for chunks of " +
               std::to_string(chunk_size_bytes));
  }
  if (offer.pool_address > UINT64_MAX - offer.slot_stride * slot_count) {
    return bad("a pool beyond the end of memory");
  }
  for (uint32_t i = 0; i < offer.rail_count; ++i) {
    if (offer.rails[i].port == 0) return bad("a rail without a port");
  }
  return {};
}

Result<std::unique_ptr<VerbsPuller>> VerbsPuller::create(Options options, VerbsTarget& target,
                                                         PullQueue& queue, Events events) {
  // Every rail of either side is used.
  const auto rails = std::max<size_t>(target.rails().size(), options.offer.rail_count);
  const auto streams = std::max<uint32_t>(options.stream_count, static_cast<uint32_t>(rails));
  std::unique_ptr<VerbsPuller> puller(
      new VerbsPuller(std::move(options), target, queue, std::move(events)));
  for (uint32_t i = 0; i < std::min(streams, wire::kStreamsMax); ++i) {
    auto bell = Bell::create();
    if (!bell) return failure(bell.error());
    puller->streams_.push_back(std::make_unique<Stream>(std::move(*bell)));
  }
  puller->first_attempts_ = static_cast<uint32_t>(puller->streams_.size());
  puller->alone_since_ = Clock::now();
  for (uint32_t i = 0; i < puller->streams_.size(); ++i) {
    puller->threads_.emplace_back([self = puller.get(), i] { self->run_stream(i); });
  }
  return puller;
}

void VerbsPuller::stop() {
  stopping_ = true;
  for (auto& stream : streams_) stream->bell.ring();
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
      stream->bell.ring();
      return;
    }
  }
}

// ---- Connections -------------------------------------------------------------------------------

void VerbsPuller::run_stream(uint32_t index) {
  Stream& stream = *streams_[index];
  bool tried = false;
  while (!stopping_) {
    auto queue = connect(index);
    if (!std::exchange(tried, true)) {
      std::lock_guard lock(mutex_);
      --first_attempts_;
    }
    Error error;
    bool fruitful = false;
    if (queue) {
      connected((*queue)->description());
      error = serve(stream, **queue, fruitful);
      // First of all the device must stop writing where those pulls wanted their bytes.
      queue->reset();
      stream.rail.reset();
      // Who rang for a pull shall not have rung in vain: another stream takes it.
      stream.asleep.store(false);
      stream.bell.silence();
      pulls_queued();
      for (Pull pull; stream.window.give_back(pull);) queue_.lost(pull);
      disconnected();
      if (!stopping_) spdlog::warn("RDMA connection broken: {}", error.message);
    } else {
      error = queue.error();
      if (!stopping_) spdlog::debug("RDMA connection {}: {}", index, error.message);
    }
    if (stopping_) return;
    bool for_good = false;
    bool rarely = false;
    {
      std::lock_guard lock(mutex_);
      if (queue) fruitless_ = fruitful ? 0 : fruitless_ + 1;
      for_good = fruitless_ >= kFruitlessMax;
      rarely = told_ && !available_;
    }
    failed(error, for_good);
    if (for_good) return;
    wait_to_retry(stream, options_.timings.retry_interval * (rarely ? kRareFactor : 1));
  }
}

Result<std::unique_ptr<ReadQueue>> VerbsPuller::connect(uint32_t index) {
  const auto rails = target_.rails();
  if (rails.empty()) return failure(ENODEV, "no RDMA device is left here");
  const wire::Rail& partner = options_.offer.rails[index % options_.offer.rail_count];
  const wire::RdmaHello hello{wire::kMagic, wire::kVersion, static_cast<uint16_t>(index),
                              options_.offer.secret};
  const auto private_data = wire::encode(hello, wire::kRdmaHelloBytes);
  Rail::ConnectOptions options;
  options.peer.ip = partner.address;
  options.peer.port = partner.port;
  options.private_data = private_data;
  options.timeout = options_.timings.verbs_connect_max;
  options.stream = index;
  // A rail in the partner's own network reaches it best; any other may have a route.
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
    auto queue = rail->rail().connect(domain, options, streams_[index]->bell);
    if (queue) {
      streams_[index]->rail = rail;
      streams_[index]->peer_key = partner.key;
      return queue;
    }
    last = queue.error();
  }
  return failure(last);
}

void VerbsPuller::wait_to_retry(Stream& stream, milliseconds time) {
  pollfd bell{stream.bell.fd(), POLLIN, 0};
  if (!stopping_) (void)::poll(&bell, 1, static_cast<int>(time.count()));
  stream.bell.silence();
}

void VerbsPuller::connected(const std::string& description) {
  ++target_.traffic().connected;
  ++target_.traffic().connections;
  std::lock_guard lock(mutex_);
  ++connections_;
  if (available_) return;
  available_ = told_ = true;
  events_.available(description);
}

void VerbsPuller::disconnected() {
  --target_.traffic().connections;
  std::lock_guard lock(mutex_);
  if (--connections_ == 0) alone_since_ = Clock::now();
}

void VerbsPuller::failed(const Error& why, bool for_good) {
  std::lock_guard lock(mutex_);
  if (connections_ > 0 || (told_ && !available_)) return;
  // At first one attempt of each connection is enough to know.
  const bool first = !told_ && first_attempts_ == 0;
  if (!for_good && !first && Clock::now() - alone_since_ < options_.timings.verbs_outage_max)
    return;
  available_ = false;
  told_ = true;
  events_.unavailable(why);
}

// ---- Reading -----------------------------------------------------------------------------------

Error VerbsPuller::serve(Stream& stream, ReadQueue& queue, bool& fruitful) {
  auto progress = Clock::now();  // when something last completed, or the first read was posted
  auto busy = progress;          // when there was last something to do
  bool drowsy = false;           // looked once more since the bell and the device are to wake us
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
      fruitful |= *reaped;
      busy = now;
      drowsy = false;
      stream.asleep.store(false, std::memory_order_relaxed);
      continue;
    }
    milliseconds rest = kIdleTime;
    if (!stream.window.empty()) {
      if (now - busy < kPollTime) continue;
      rest =
          std::chrono::ceil<milliseconds>(progress + options_.timings.connection_silence_max - now);
      if (rest <= milliseconds(0)) {
        return Error{ETIMEDOUT, queue.description() + ": a read is not answered"};
      }
    }
    if (!drowsy) {
      // What comes from here on wakes us; what came just before is looked for once more.
      // (Who has no room is not to be woken in the place of one who has.)
      stream.asleep.store(stream.window.has_room(queue.limits()), std::memory_order_seq_cst);
      if (Status armed = queue.arm(); !armed) return armed.error();
      drowsy = true;
      continue;
    }
    if (Status waited = queue.wait(rest, stream.bell); !waited) return waited.error();
    stream.bell.silence();
    stream.asleep.store(false, std::memory_order_relaxed);
    drowsy = false;
    woken = true;
    busy = Clock::now();
  }
  return Error{ECANCELED, "the session has ended"};
}

// Posts what there is room for; whether there was something.
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
  // handle_announce() has checked the slot, and the length within it.
  const uint64_t address =
      options_.offer.pool_address + pull.slot * options_.offer.slot_stride + pull.slot_offset;
  auto& traffic = target_.traffic();
  return stream.window.add(pull, std::span(keys).first(pull.pieces.size()), address,
                           stream.peer_key, queue.limits(), [&](const ReadWork& work) {
                             traffic.reads_posted.fetch_add(1, std::memory_order_relaxed);
                             return queue.post(work);
                           });
}

// Takes what has completed; whether there was something.
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
      case ReadWindow::Outcome::kStrange:
        ++traffic.strange_completions;
        spdlog::warn("{}: a completion of no read under way: ignored", queue.description());
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
