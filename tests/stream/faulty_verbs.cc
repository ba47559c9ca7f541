#include "tests/stream/faulty_verbs.h"

#include <poll.h>

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <set>

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr size_t kPrivateDataBytes = 56;  // length of received private data, padded with zeros
constexpr uint16_t kFirstPort = 7000;

std::array<uint8_t, 16> address_of(bool source, size_t rail) {
  std::array<uint8_t, 16> ip{};
  ip[10] = ip[11] = 0xff;
  ip[12] = 10;
  ip[14] = static_cast<uint8_t>(rail);
  ip[15] = source ? 1 : 2;
  return ip;
}

}  // namespace

struct RegionRecord {
  std::span<std::byte> memory;
  Rights rights;
  uint32_t domain;
};

// A connection. It exists while one end refers to it.
struct Link {
  bool up = true;
  std::string why;
  uint32_t source_domain = 0;
  size_t source_rail = 0;
  size_t target_rail = 0;
  uint32_t stream = 0;
  const WakeEvent* wake = nullptr;  // of the target's end: signalled when the link ends
};

// The events of one rail. Each call holds the mutex, so no call runs after the rail is destroyed.
struct RailHandlers {
  std::mutex mutex;
  RailEvents events;
};

struct SideState {
  std::map<size_t, std::shared_ptr<RailHandlers>> rails;  // the open rails
  std::set<size_t> removed;
  uint64_t registered_bytes = 0;
  uint16_t port = 0;  // rail i uses port + i
};

struct FaultyVerbs::State {
  explicit State(FaultyVerbsOptions chosen) : options(chosen), random(chosen.seed) {}

  const FaultyVerbsOptions options;
  std::mutex mutex;
  // Guarded by mutex.
  std::mt19937_64 random;
  SideState sides[2];  // [0]: target, [1]: source
  std::map<uint32_t, RegionRecord> regions;
  std::set<uint32_t> closed_domains;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<Link>> links;  // by (domain, stream)
  std::set<std::shared_ptr<Link>> all_links;
  uint32_t last_key = 1000;
  uint32_t last_domain = 0;
  uint32_t key_offset = 0;
  bool link_up = true;
  std::deque<ReadFault> planned;
  std::vector<std::byte> latest_private_data;
  Counts counts;

  std::unique_ptr<Fabric> fabrics[2];

  void end_locked(const std::shared_ptr<Link>& link, const std::string& why) {
    if (!link->up) return;
    link->up = false;
    link->why = why;
    if (link->wake != nullptr) link->wake->signal();
  }
  ReadFault next_fault_locked() {
    ReadFault fault = ReadFault::kNone;
    if (!planned.empty()) {
      fault = planned.front();
      planned.pop_front();
    } else if (options.fault_rate > 0 && counts.faults < options.faults_max &&
               std::uniform_real_distribution<>(0, 1)(random) < options.fault_rate) {
      fault = static_cast<ReadFault>(1 + random() % 7);
    }
    if (fault != ReadFault::kNone) ++counts.faults;
    return fault;
  }
};

namespace {

using StatePointer = std::shared_ptr<FaultyVerbs::State>;

class FaultyRegion final : public Region {
 public:
  FaultyRegion(StatePointer state, bool source, uint32_t key, uint32_t offered, size_t bytes)
      : state_(std::move(state)), source_(source), key_(key), offered_(offered), bytes_(bytes) {}
  ~FaultyRegion() override {
    std::lock_guard lock(state_->mutex);
    state_->regions.erase(key_);
    --state_->counts.live_regions;
    state_->counts.live_bytes -= bytes_;
    state_->sides[source_].registered_bytes -= bytes_;
  }
  uint32_t local_key() const override { return key_; }
  uint32_t peer_key() const override { return offered_; }

 private:
  const StatePointer state_;
  const bool source_;
  const uint32_t key_;
  const uint32_t offered_;
  const size_t bytes_;
};

class FaultyDomain final : public Domain {
 public:
  FaultyDomain(StatePointer state, bool source, uint32_t number)
      : state_(std::move(state)), source_(source), number_(number) {}
  ~FaultyDomain() override {
    close();
    std::lock_guard lock(state_->mutex);
    --state_->counts.live_domains;
  }
  Result<std::unique_ptr<Region>> register_memory(std::span<std::byte> memory,
                                                  Rights rights) override {
    std::lock_guard lock(state_->mutex);
    SideState& side = state_->sides[source_];
    if (side.registered_bytes + memory.size() > state_->options.registered_max_bytes) {
      return failure(ENOMEM, "register memory: the memlock limit is reached");
    }
    side.registered_bytes += memory.size();
    const uint32_t key = ++state_->last_key;
    state_->regions[key] = {memory, rights, number_};
    ++state_->counts.live_regions;
    ++state_->counts.regions_made;
    state_->counts.live_bytes += memory.size();
    return std::make_unique<FaultyRegion>(state_, source_, key, key + state_->key_offset,
                                          memory.size());
  }
  void close() override {
    std::lock_guard lock(state_->mutex);
    state_->closed_domains.insert(number_);
    for (auto& [key, link] : state_->links) {
      if (key.first == number_) state_->end_locked(link, "the source disconnected");
    }
    std::erase_if(state_->links, [&](auto& entry) { return entry.first.first == number_; });
  }
  uint32_t number() const { return number_; }

 private:
  const StatePointer state_;
  const bool source_;
  const uint32_t number_;
};

class FaultyQueue final : public ReadQueue {
 public:
  FaultyQueue(StatePointer state, std::shared_ptr<Link> link, std::shared_ptr<Domain> domain,
              WakeEvent ended, std::string description)
      : state_(std::move(state)),
        link_(std::move(link)),
        domain_(std::move(domain)),
        ended_(std::move(ended)),
        description_(std::move(description)) {
    std::lock_guard lock(state_->mutex);
    ++state_->counts.live_queues;
    ++state_->counts.connections;
    link_->wake = &ended_;
    state_->all_links.insert(link_);
  }
  ~FaultyQueue() override {
    std::lock_guard lock(state_->mutex);
    --state_->counts.live_queues;
    link_->up = false;
    link_->wake = nullptr;
    state_->all_links.erase(link_);
    std::erase_if(state_->links, [&](auto& entry) { return entry.second == link_; });
  }

  const ReadLimits& limits() const override { return state_->options.limits; }
  const std::string& description() const override { return description_; }

  Status post(const ReadWork& work) override {
    assert(work.pieces.size() <= state_->options.limits.pieces_max && !work.pieces.empty());
    assert(posted_.size() < state_->options.limits.works_max);
    Posted posted{work.id, work.peer_address, work.peer_key, {}, 0};
    for (const auto& piece : work.pieces) {
      posted.pieces.push_back(piece);
      posted.bytes += piece.length;
    }
    assert(posted.bytes <= state_->options.limits.read_bytes_max);
    std::lock_guard lock(state_->mutex);
    ++state_->counts.reads;
    posted_.push_back(std::move(posted));
    return {};
  }

  Result<size_t> poll(std::span<ReadCompletion> completions) override {
    std::lock_guard lock(state_->mutex);
    if (!link_->up && !broken_) return failure(ECONNRESET, description_ + ": " + link_->why);
    size_t count = 0;
    while (count + 2 <= completions.size() && !posted_.empty()) {
      if (broken_) {
        completions[count++] = {posted_.front().id, "Work Request Flushed Error"};
        posted_.pop_front();
        continue;
      }
      // With some probability the device has not finished yet.
      if (!state_->link_up || unanswered_ || state_->random() % 3 == 0) break;
      const Posted work = std::move(posted_.front());
      const ReadFault fault = state_->next_fault_locked();
      if (fault == ReadFault::kNoAnswer) {
        unanswered_ = true;
        posted_.front() = work;
        break;
      }
      posted_.pop_front();
      const char* error = fault == ReadFault::kError ? "transport retry counter exceeded" : nullptr;
      if (error == nullptr) error = carry_out_locked(work, fault == ReadFault::kCorrupt);
      broken_ |= error != nullptr;
      completions[count++] = {work.id, error};
      if (fault == ReadFault::kDuplicate) completions[count++] = {work.id, nullptr};
      if (fault == ReadFault::kUnknown) completions[count++] = {state_->random(), nullptr};
      if (fault == ReadFault::kLate && last_id_ != 0) completions[count++] = {last_id_, nullptr};
      if (fault == ReadFault::kDisconnect) state_->end_locked(link_, "disconnected");
      last_id_ = work.id;
    }
    return count;
  }

  Status arm() override { return {}; }

  Status wait(milliseconds timeout, const WakeEvent& wake) override {
    bool ready = false;
    {
      std::lock_guard lock(state_->mutex);
      ready = !posted_.empty() && state_->link_up && !unanswered_;
    }
    pollfd waits[] = {{ended_.fd(), POLLIN, 0}, {wake.fd(), POLLIN, 0}};
    (void)::poll(waits, 2, ready ? 0 : static_cast<int>(timeout.count()));
    ended_.clear();
    std::lock_guard lock(state_->mutex);
    if (!link_->up) return failure(ECONNRESET, description_ + ": " + link_->why);
    return {};
  }

 private:
  struct Posted {
    uint64_t id = 0;
    uint64_t address = 0;
    uint32_t key = 0;
    std::vector<ReadWork::Piece> pieces;
    uint64_t bytes = 0;
  };

  const char* carry_out_locked(const Posted& work, bool corrupt) {
    const auto& regions = state_->regions;
    const auto at_peer = regions.find(work.key);
    const auto inside = [](const RegionRecord& region, uint64_t address, uint64_t length) {
      const auto begin = reinterpret_cast<uintptr_t>(region.memory.data());
      return address >= begin && length <= region.memory.size() &&
             address - begin <= region.memory.size() - length;
    };
    if (at_peer == regions.end() || at_peer->second.rights != Rights::kReadByPeer ||
        at_peer->second.domain != link_->source_domain ||
        !inside(at_peer->second, work.address, work.bytes)) {
      return "remote access error";
    }
    const auto own = static_cast<FaultyDomain&>(*domain_).number();
    const auto* from = reinterpret_cast<const std::byte*>(work.address);
    for (const auto& piece : work.pieces) {
      const auto here = regions.find(piece.key);
      if (here == regions.end() || here->second.rights != Rights::kLandReads ||
          here->second.domain != own ||
          !inside(here->second, reinterpret_cast<uintptr_t>(piece.data), piece.length)) {
        return "local protection error";
      }
      std::memcpy(piece.data, from, piece.length);
      if (corrupt) piece.data[piece.length / 2] ^= std::byte{1};
      from += piece.length;
      state_->counts.bytes_copied += piece.length;
    }
    return nullptr;
  }

  const StatePointer state_;
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<Domain> domain_;
  const WakeEvent ended_;
  const std::string description_;
  std::deque<Posted> posted_;
  uint64_t last_id_ = 0;
  bool broken_ = false;
  bool unanswered_ = false;
};

Result<Admission> call_admit(RailHandlers& handlers, const RailAddress& peer,
                             std::span<const std::byte> private_data) {
  std::lock_guard lock(handlers.mutex);
  if (!handlers.events.admit) return failure(ECONNREFUSED, "no listener there");
  return handlers.events.admit(peer, private_data);
}

class FaultyRail final : public Rail {
 public:
  FaultyRail(StatePointer state, std::shared_ptr<RailHandlers> handlers, bool source, size_t index,
             uint16_t port)
      : state_(std::move(state)), handlers_(std::move(handlers)), source_(source), index_(index) {
    address_.ip = address_of(source, index);
    address_.port = port;
    address_.prefix_bits = 120;
    device_ = (source ? "source" : "target") + std::to_string(index);
  }
  ~FaultyRail() override { start({}); }
  void start(RailEvents events) override {
    std::lock_guard lock(handlers_->mutex);
    handlers_->events = std::move(events);
  }
  const std::string& device() const override { return device_; }
  const RailAddress& address() const override { return address_; }

  Result<std::shared_ptr<Domain>> create_domain() override {
    std::lock_guard lock(state_->mutex);
    if (state_->sides[source_].removed.contains(index_)) {
      return failure(ENODEV, device_ + " was removed");
    }
    ++state_->counts.live_domains;
    return std::make_shared<FaultyDomain>(state_, source_, ++state_->last_domain);
  }

  Result<std::unique_ptr<ReadQueue>> connect(const std::shared_ptr<Domain>& domain,
                                             const ConnectOptions& options,
                                             const WakeEvent& stop) override {
    const std::string description =
        device_ + " " + address_.ip_text() + " - " + options.peer.text();
    const auto deadline = std::chrono::steady_clock::now() + options.timeout;
    // Declared before `lock`, so destroyed after it. If the session ends in the meantime, this is
    // the last reference to the domain, and ~FaultyDomain() locks the mutex.
    Result<Admission> admission = failure(ECANCELED, "");
    std::unique_lock lock(state_->mutex);
    while (!state_->link_up) {
      lock.unlock();
      if (std::chrono::steady_clock::now() > deadline) {
        return failure(ETIMEDOUT, description + ": no answer to the RDMA connection request");
      }
      pollfd wait{stop.fd(), POLLIN, 0};
      if (::poll(&wait, 1, 1) > 0) return failure(ECANCELED, description + ": cancelled");
      lock.lock();
    }
    SideState& peer = state_->sides[true];
    size_t rail = 0;
    while (peer.rails.contains(rail) && address_of(true, rail) != options.peer.ip) ++rail;
    if (state_->sides[false].removed.contains(index_)) return failure(ENODEV, device_ + " is gone");
    if (!peer.rails.contains(rail) || peer.removed.contains(rail) ||
        options.peer.port != peer.port + rail) {
      return failure(ECONNREFUSED, description + ": no listener there");
    }
    const auto handlers = peer.rails[rail];
    std::vector<std::byte> data(options.private_data.begin(), options.private_data.end());
    data.resize(kPrivateDataBytes);
    state_->latest_private_data = data;
    lock.unlock();
    admission = call_admit(*handlers, address_, data);
    auto ended = WakeEvent::create();
    lock.lock();
    if (!admission || !ended) {
      ++state_->counts.refused;
      const Error& error = admission ? ended.error() : admission.error();
      return failure(ECONNREFUSED, description + ": " + error.message);
    }
    state_->counts.read_timeout = options.read_timeout;
    auto link = std::make_shared<Link>();
    link->source_domain = static_cast<FaultyDomain&>(*admission->domain).number();
    link->source_rail = rail;
    link->target_rail = index_;
    link->stream = admission->stream;
    if (state_->closed_domains.contains(link->source_domain)) {
      return failure(ECONNREFUSED, description + ": the session has ended");
    }
    auto& present = state_->links[{link->source_domain, link->stream}];
    if (present) state_->end_locked(present, "replaced");
    present = link;
    lock.unlock();
    return std::make_unique<FaultyQueue>(state_, link, domain, std::move(*ended), description);
  }

 private:
  const StatePointer state_;
  const std::shared_ptr<RailHandlers> handlers_;
  const bool source_;
  const size_t index_;
  RailAddress address_;
  std::string device_;
};

class FaultySide final : public Fabric {
 public:
  FaultySide(std::weak_ptr<FaultyVerbs::State> state, bool source)
      : state_(std::move(state)), source_(source) {}

  Result<std::vector<std::unique_ptr<Rail>>> open(const RailChoice&, RailRole) override {
    const StatePointer state = state_.lock();
    std::lock_guard lock(state->mutex);
    SideState& side = state->sides[source_];
    if (side.removed.size() == state->options.rails) return failure(ENODEV, "no RDMA device");
    side.port = static_cast<uint16_t>(side.port == 0 ? kFirstPort : side.port + 100);
    std::vector<std::unique_ptr<Rail>> rails;
    for (size_t i = 0; i < state->options.rails; ++i) {
      side.rails[i] = std::make_shared<RailHandlers>();
      rails.push_back(std::make_unique<FaultyRail>(state, side.rails[i], source_, i,
                                                   static_cast<uint16_t>(side.port + i)));
    }
    return rails;
  }

 private:
  const std::weak_ptr<FaultyVerbs::State> state_;
  const bool source_;
};

void remove_rail(FaultyVerbs::State& state, bool source, size_t rail) {
  std::shared_ptr<RailHandlers> handlers;
  {
    std::lock_guard lock(state.mutex);
    state.sides[source].removed.insert(rail);
    for (auto& link : state.all_links) {
      if ((source ? link->source_rail : link->target_rail) == rail) {
        state.end_locked(link, "the device was removed");
      }
    }
    handlers = state.sides[source].rails.at(rail);
  }
  std::lock_guard lock(handlers->mutex);
  if (handlers->events.lost) handlers->events.lost("the device was removed");
}

}  // namespace

FaultyVerbs::FaultyVerbs(FaultyVerbsOptions options) : state_(std::make_shared<State>(options)) {
  for (const bool source : {false, true}) {
    state_->fabrics[source] = std::make_unique<FaultySide>(state_, source);
  }
}
FaultyVerbs::~FaultyVerbs() = default;

Fabric& FaultyVerbs::source() { return *state_->fabrics[true]; }
Fabric& FaultyVerbs::target() { return *state_->fabrics[false]; }

void FaultyVerbs::set_link(bool up) {
  std::lock_guard lock(state_->mutex);
  state_->link_up = up;
  for (auto& link : state_->all_links) {
    // Reads that could not complete may complete now.
    if (link->wake != nullptr) link->wake->signal();
  }
}

void FaultyVerbs::remove_source_rail(size_t rail) { remove_rail(*state_, true, rail); }
void FaultyVerbs::remove_target_rail(size_t rail) { remove_rail(*state_, false, rail); }

void FaultyVerbs::return_rails() {
  std::lock_guard lock(state_->mutex);
  for (SideState& side : state_->sides) side.removed.clear();
}

void FaultyVerbs::plan(std::vector<ReadFault> faults) {
  std::lock_guard lock(state_->mutex);
  state_->planned.assign(faults.begin(), faults.end());
}

void FaultyVerbs::forget_source_keys() {
  std::lock_guard lock(state_->mutex);
  state_->key_offset = 500'000;
}

FaultyVerbs::Counts FaultyVerbs::counts() const {
  std::lock_guard lock(state_->mutex);
  return state_->counts;
}

Error FaultyVerbs::refusal(std::span<const std::byte> private_data) {
  std::shared_ptr<RailHandlers> handlers;
  {
    std::lock_guard lock(state_->mutex);
    handlers = state_->sides[true].rails.at(0);
  }
  auto admission = call_admit(*handlers, target_address(), private_data);
  return admission ? Error{0, ""} : admission.error();
}

std::vector<std::byte> FaultyVerbs::latest_private_data() const {
  std::lock_guard lock(state_->mutex);
  return state_->latest_private_data;
}

RailAddress FaultyVerbs::source_address() const {
  std::lock_guard lock(state_->mutex);
  RailAddress address;
  address.ip = address_of(true, 0);
  address.port = state_->sides[true].port;
  return address;
}

RailAddress FaultyVerbs::target_address() const {
  RailAddress address;
  address.ip = address_of(false, 0);
  return address;
}

}  // namespace ppmr
