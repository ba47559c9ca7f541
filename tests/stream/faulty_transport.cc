#include "tests/stream/faulty_transport.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class Pair;

}  // namespace

struct FaultyNetwork::State {
  explicit State(FaultOptions o) : options(std::move(o)) {}

  const FaultOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  bool link_up = true;
  bool listening = false;
  std::deque<std::unique_ptr<Connection>> backlog;
  std::vector<std::weak_ptr<Pair>> pairs;
  FaultCounts counts;

  bool may_fault_locked() { return counts.faults() < options.faults_max; }
};

namespace {

using State = FaultyNetwork::State;

struct Segment {
  std::vector<std::byte> bytes;
  Clock::time_point ready_at;
};

// Both directions of one connection, guarded by the network's only mutex. Throughput does not
// matter here, and one mutex needs no lock order.
class Pair {
 public:
  Pair(std::shared_ptr<State> network, uint64_t number) : network_(std::move(network)) {
    for (uint64_t side = 0; side < 2; ++side) {
      std::seed_seq seed{network_->options.seed, number, side};
      directions_[side].random.seed(seed);
    }
  }

  Status write(size_t side, std::span<iovec> buffers) {
    std::unique_lock lock(network_->mutex);
    Direction& out = directions_[side];
    for (const iovec& buffer : buffers) {
      const auto* data = static_cast<const std::byte*>(buffer.iov_base);
      for (size_t position = 0; position < buffer.iov_len;) {
        const auto timeout = out.write_timeout > milliseconds(0) ? out.write_timeout : kForever;
        if (!network_->changed.wait_for(lock, timeout, [&] {
              return dead_ || closed_[side] || closed_[1 - side] ||
                     out.in_flight_bytes < network_->options.window_bytes;
            })) {
          return failure(ETIMEDOUT, "send to " + peer_ + ": the peer does not read");
        }
        if (dead_ || closed_[side] || closed_[1 - side]) {
          return failure(EPIPE, "send to " + peer_ + ": connection closed");
        }
        const size_t length = std::min<size_t>(
            buffer.iov_len - position, 1 + out.random() % network_->options.segment_bytes_max);
        send_segment(out, {data + position, length});
        position += length;
        network_->changed.notify_all();
      }
    }
    return {};
  }

  Status read(size_t side, std::span<iovec> buffers, size_t& received_bytes) {
    received_bytes = 0;
    std::unique_lock lock(network_->mutex);
    Direction& in = directions_[1 - side];
    for (const iovec& buffer : buffers) {
      auto* data = static_cast<std::byte*>(buffer.iov_base);
      for (size_t position = 0; position < buffer.iov_len;) {
        if (auto ready = await_bytes(lock, in, side); !ready) return ready;
        Segment& segment = in.segments.front();
        const size_t count =
            std::min(buffer.iov_len - position, segment.bytes.size() - in.front_used);
        std::copy_n(segment.bytes.begin() + static_cast<ptrdiff_t>(in.front_used), count,
                    data + position);
        position += count;
        received_bytes += count;
        use_front_locked(in, count);
      }
    }
    return {};
  }

  Result<size_t> read_some(size_t side, std::span<std::byte> bytes, bool keep) {
    std::unique_lock lock(network_->mutex);
    Direction& in = directions_[1 - side];
    if (auto ready = await_bytes(lock, in, side); !ready) return failure(ready.error());
    Segment& segment = in.segments.front();
    const size_t count = std::min(bytes.size(), segment.bytes.size() - in.front_used);
    std::copy_n(segment.bytes.begin() + static_cast<ptrdiff_t>(in.front_used), count, bytes.data());
    if (!keep) use_front_locked(in, count);
    return count;
  }

  void set_read_timeout(size_t side, milliseconds timeout) {
    std::lock_guard lock(network_->mutex);
    directions_[1 - side].read_timeout = timeout;
  }
  void set_write_timeout(size_t side, milliseconds timeout) {
    std::lock_guard lock(network_->mutex);
    directions_[side].write_timeout = timeout;
  }
  void close(size_t side) {
    std::lock_guard lock(network_->mutex);
    closed_[side] = true;
    network_->changed.notify_all();
  }
  void cut_locked() {
    dead_ = true;
    network_->changed.notify_all();
  }
  const std::string& peer() const { return peer_; }

 private:
  struct Direction {  // [i]: the direction from side i
    std::deque<Segment> segments;
    size_t front_used = 0;
    size_t in_flight_bytes = 0;
    std::optional<Segment> swapped;  // held back until the next segment is sent
    std::mt19937_64 random;
    milliseconds read_timeout{0};
    milliseconds write_timeout{0};
  };
  static constexpr milliseconds kForever{3'600'000};

  void use_front_locked(Direction& in, size_t count) {
    in.front_used += count;
    in.in_flight_bytes -= count;
    if (in.front_used == in.segments.front().bytes.size()) {
      in.segments.pop_front();
      in.front_used = 0;
    }
    network_->changed.notify_all();
  }

  bool chance(Direction& out, double probability) {
    return std::uniform_real_distribution<>()(out.random) < probability &&
           network_->may_fault_locked();
  }

  void send_segment(Direction& out, std::span<const std::byte> bytes) {
    const FaultRates& rates = network_->options.rates;
    FaultCounts& counts = network_->counts;
    Segment segment{{bytes.begin(), bytes.end()}, Clock::now()};
    if (chance(out, rates.cut)) {
      ++counts.cut;
      dead_ = true;
      return;
    }
    if (chance(out, rates.drop)) {
      ++counts.dropped;
      return;
    }
    if (chance(out, rates.corrupt)) {
      ++counts.corrupted;
      segment.bytes[out.random() % bytes.size()] ^= std::byte{1} << (out.random() % 8);
    }
    if (chance(out, rates.delay)) {
      ++counts.delayed;
      segment.ready_at += milliseconds(
          1 + out.random() % static_cast<uint64_t>(network_->options.delay_max.count()));
    }
    out.in_flight_bytes += bytes.size();
    if (!out.swapped && chance(out, rates.reorder)) {
      ++counts.reordered;
      out.swapped = std::move(segment);
      return;
    }
    out.segments.push_back(std::move(segment));
    if (out.swapped) {
      out.segments.push_back(std::move(*out.swapped));
      out.swapped.reset();
    }
  }

  Status await_bytes(std::unique_lock<std::mutex>& lock, Direction& in, size_t side) {
    const bool waits_forever = in.read_timeout <= milliseconds(0);
    const auto deadline = Clock::now() + (waits_forever ? kForever : in.read_timeout);
    for (;;) {
      if (dead_ || closed_[side]) {
        return failure(ECONNRESET, "receive from " + peer_ + ": connection reset");
      }
      const bool waiting = in.segments.empty() || !network_->link_up;
      if (!waiting && in.segments.front().ready_at <= Clock::now()) return {};
      if (in.segments.empty() && closed_[1 - side] && network_->link_up) {
        return failure(ECONNRESET, "receive from " + peer_ + ": connection closed");
      }
      if (Clock::now() >= deadline) {
        return failure(ETIMEDOUT, "receive from " + peer_ + ": no byte arrived");
      }
      network_->changed.wait_until(
          lock, waiting ? deadline : std::min(deadline, in.segments.front().ready_at));
    }
  }

  const std::shared_ptr<State> network_;
  const std::string peer_ = "faulty:1";
  Direction directions_[2];
  // Side i has shut down; bytes that were sent before still arrive.
  bool closed_[2] = {false, false};
  bool dead_ = false;
};

class FaultyConnection final : public Connection {
 public:
  FaultyConnection(std::shared_ptr<Pair> pair, size_t side) : pair_(std::move(pair)), side_(side) {}
  ~FaultyConnection() override { pair_->close(side_); }

  using Connection::read;
  using Connection::write;
  Status read(std::span<iovec> buffers, size_t& received_bytes) override {
    return pair_->read(side_, buffers, received_bytes);
  }
  Result<size_t> read_some(std::span<std::byte> bytes) override {
    return pair_->read_some(side_, bytes, /*keep=*/false);
  }
  Result<std::byte> peek() override {
    std::byte byte{};
    if (auto got = pair_->read_some(side_, {&byte, 1}, /*keep=*/true); !got) {
      return failure(got.error());
    }
    return byte;
  }
  Status write(std::span<iovec> buffers) override { return pair_->write(side_, buffers); }
  void set_read_timeout(milliseconds timeout) override { pair_->set_read_timeout(side_, timeout); }
  void set_write_timeout(milliseconds timeout) override {
    pair_->set_write_timeout(side_, timeout);
  }
  void shut_down() override { pair_->close(side_); }
  const std::string& peer() const override { return pair_->peer(); }

 private:
  const std::shared_ptr<Pair> pair_;
  const size_t side_;
};

class FaultyConnector final : public Connector {
 public:
  explicit FaultyConnector(std::shared_ptr<State> network) : network_(std::move(network)) {}

  Result<std::unique_ptr<Connection>> connect(milliseconds timeout) override {
    std::unique_lock lock(network_->mutex);
    if (!network_->changed.wait_for(lock, timeout, [this] { return network_->link_up; })) {
      return failure(ETIMEDOUT, "connect to " + name_ + ": no answer");
    }
    if (!network_->listening) return failure(ECONNREFUSED, "connect to " + name_ + ": refused");
    auto pair = std::make_shared<Pair>(network_, network_->counts.connections++);
    network_->pairs.push_back(pair);
    network_->backlog.push_back(std::make_unique<FaultyConnection>(pair, 1));
    network_->changed.notify_all();
    return std::make_unique<FaultyConnection>(pair, 0);
  }
  const std::string& target() const override { return name_; }

 private:
  const std::shared_ptr<State> network_;
  const std::string name_ = "faulty:1";
};

class FaultyListener final : public Listener {
 public:
  explicit FaultyListener(std::shared_ptr<State> network) : network_(std::move(network)) {
    std::lock_guard lock(network_->mutex);
    network_->listening = true;
  }
  ~FaultyListener() override { close(); }

  Result<std::unique_ptr<Connection>> accept() override {
    std::unique_lock lock(network_->mutex);
    network_->changed.wait(lock,
                           [this] { return !network_->listening || !network_->backlog.empty(); });
    if (!network_->listening) return failure(ECANCELED, "accept: closed");
    auto connection = std::move(network_->backlog.front());
    network_->backlog.pop_front();
    return connection;
  }
  void close() override {
    std::deque<std::unique_ptr<Connection>> unaccepted;
    std::lock_guard lock(network_->mutex);
    network_->listening = false;
    unaccepted.swap(network_->backlog);
    network_->changed.notify_all();
  }
  const std::string& address() const override { return name_; }

 private:
  const std::shared_ptr<State> network_;
  const std::string name_ = "faulty:1";
};

}  // namespace

FaultCounts& FaultCounts::operator+=(const FaultCounts& other) {
  connections += other.connections;
  dropped += other.dropped;
  delayed += other.delayed;
  cut += other.cut;
  reordered += other.reordered;
  corrupted += other.corrupted;
  outages += other.outages;
  return *this;
}

std::string FaultCounts::text() const {
  return std::to_string(dropped) + " dropped, " + std::to_string(delayed) + " delayed, " +
         std::to_string(cut) + " cut, " + std::to_string(reordered) + " reordered, " +
         std::to_string(corrupted) + " corrupted, " + std::to_string(outages) + " outages, on " +
         std::to_string(connections) + " connections";
}

FaultyNetwork::FaultyNetwork(FaultOptions options)
    : state_(std::make_shared<State>(std::move(options))) {}

FaultyNetwork::~FaultyNetwork() {
  // Clears the backlog, because backlog and state own each other.
  std::deque<std::unique_ptr<Connection>> unaccepted;
  std::lock_guard lock(state_->mutex);
  unaccepted.swap(state_->backlog);
  state_->pairs.clear();
}

std::unique_ptr<Listener> FaultyNetwork::listen() {
  return std::make_unique<FaultyListener>(state_);
}

std::unique_ptr<Connector> FaultyNetwork::connector() {
  return std::make_unique<FaultyConnector>(state_);
}

void FaultyNetwork::set_link(bool up) {
  std::lock_guard lock(state_->mutex);
  if (state_->link_up && !up) ++state_->counts.outages;
  state_->link_up = up;
  state_->changed.notify_all();
}

void FaultyNetwork::cut_all() {
  std::lock_guard lock(state_->mutex);
  for (auto& weak : state_->pairs) {
    if (auto pair = weak.lock()) pair->cut_locked();
  }
  state_->pairs.clear();
}

FaultCounts FaultyNetwork::counts() const {
  std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace ppmr
