#include "rdma_stream/verbs/verbs_source.h"

#include <algorithm>

#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/session_proof.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// The largest number of RDMA connections of one session. A session may have more rails than
// streams.
uint32_t connections_max(uint32_t stream_count) { return std::max(stream_count, wire::kRailsMax); }

// Ends the connections of each rail before it deregisters the memory of the rail.
template <typename OnRails>
void revoke(OnRails& rails) {
  for (auto& on : rails) {
    if (on.domain) on.domain->close();
    on.region.reset();
  }
}

}  // namespace

// ---- Loans -------------------------------------------------------------------------------------

PoolLoan::~PoolLoan() { source_.end(*this); }

Result<std::unique_ptr<PoolLoan>> VerbsSource::lend(const BufferPool& pool, uint32_t stream_count) {
  MutexLock lending(lending_mutex_);
  if (auto opened = open(); !opened) return failure(opened.error());
  std::unique_ptr<PoolLoan> loan(new PoolLoan(*this));
  loan->last_attempts_.resize(connections_max(stream_count));
  loan->pool_bytes_ = pool.memory().size();
  wire::TransportOffer& offer = loan->offer_;
  offer.secret = random_token();
  offer.pool_address = reinterpret_cast<uintptr_t>(pool.payload(0).data());
  offer.slot_stride = pool.slot_stride_bytes();
  Error last{ENODEV, "no RDMA device is left"};
  for (const auto& open_rail : lending_rails()) {
    Rail& rail = *open_rail->rail;
    auto domain = rail.create_domain();
    if (!domain) {
      last = domain.error();
      continue;
    }
    auto region = (*domain)->register_memory(pool.memory(), Rights::kReadByPeer);
    if (!region) {
      last = region.error();
      spdlog::warn("{}", last.message);
      continue;
    }
    wire::Rail& offered = offer.rails[offer.rail_count++];
    offered.address = rail.address().ip;
    offered.port = rail.address().port;
    offered.key = (*region)->peer_key();
    loan->rails_.push_back({open_rail.get(), std::move(*domain), std::move(*region)});
  }
  if (offer.rail_count == 0) return failure(last);
  std::vector<PoolLoan::OnRail> lost;  // destroyed without the lock
  MutexLock lock(mutex_);
  loans_.push_back(loan.get());
  // Remove the rails that were lost before this loan was in loans_, where lose() looks for loans.
  for (PoolLoan::OnRail& on : loan->rails_) {
    if (on.rail->lost) lost.push_back(std::exchange(on, {}));
  }
  return loan;
}

void VerbsSource::end(PoolLoan& loan) {
  std::vector<PoolLoan::OnRail> rails;
  {
    MutexLock lock(mutex_);
    std::erase(loans_, &loan);
    rails.swap(loan.rails_);
  }
  revoke(rails);
}

// ---- Rails -------------------------------------------------------------------------------------

Result<std::unique_ptr<VerbsSource>> VerbsSource::create(Fabric& fabric, RailChoice choice) {
  std::unique_ptr<VerbsSource> source(new VerbsSource(fabric, std::move(choice)));
  Status opened;
  {
    MutexLock lending(source->lending_mutex_);
    opened = source->open();
  }
  if (!opened) return failure(opened.error());
  return source;
}

VerbsSource::~VerbsSource() {
  Rails rails;  // destroyed without the lock: the rails' threads may wait for it
  MutexLock lock(mutex_);
  rails.swap(rails_);
}

Status VerbsSource::open() {
  Rails lost;
  {
    MutexLock lock(mutex_);
    if (std::any_of(rails_.begin(), rails_.end(), [](auto& rail) { return !rail->lost; })) {
      return {};
    }
    lost.swap(rails_);
  }
  lost.clear();  // frees the ports of these rails
  auto opened = fabric_.open(choice_, RailRole::kListen);
  if (!opened) return failure(opened.error());
  Rails rails;
  for (auto& rail : *opened) {
    SourceRail& open = *rails.emplace_back(std::make_unique<SourceRail>());
    open.rail = std::move(rail);
    RailEvents events;
    events.admit = [this, &open](const RailAddress& peer, std::span<const std::byte> data) {
      return admit(open, peer, data);
    };
    events.lost = [this, &open](const std::string& why) { lose(open, why); };
    // Call start() without the lock, because the rail's events take it.
    open.rail->start(std::move(events));
  }
  MutexLock lock(mutex_);
  rails_.swap(rails);
  return {};
}

void VerbsSource::lose(SourceRail& rail, const std::string& why) {
  spdlog::warn("RDMA device {} lost: {}", rail.rail->device(), why);
  std::vector<PoolLoan::OnRail> ended;
  {
    MutexLock lock(mutex_);
    rail.lost = true;
    for (PoolLoan* loan : loans_) {
      for (PoolLoan::OnRail& on : loan->rails_) {
        if (on.rail == &rail) ended.push_back(std::exchange(on, {}));
      }
    }
  }
  revoke(ended);
}

// ---- Connections -------------------------------------------------------------------------------

Result<Admission> VerbsSource::admit(const SourceRail& rail, const RailAddress& peer,
                                     std::span<const std::byte> private_data) {
  // Drop the padding that the connection manager adds to the hello.
  if (private_data.size() > wire::kRdmaHelloBytes) {
    private_data = private_data.first(wire::kRdmaHelloBytes);
  }
  const auto hello = wire::decode<wire::RdmaHello>(private_data);
  Error refusal{EPROTO, "not a ppmr target"};
  MutexLock lock(mutex_);
  if (hello && hello->magic == wire::kMagic) {
    if (hello->version != wire::kVersion) {
      refusal.message = "another version of the protocol";
    } else {
      refusal = Error{EACCES, "no session has the secret of this proof"};
      const RailAddress& own = rail.rail->address();
      const RdmaEnds ends{own.ip, own.port, peer.ip};
      for (PoolLoan* loan : loans_) {
        const auto expected = rdma_proof(loan->offer_.secret, ends, hello->stream, hello->attempt);
        if (!equal_secrets(expected, hello->proof)) continue;
        auto admission = admit_locked(*loan, rail, *hello);
        ++(admission ? admitted_ : refused_);
        return admission;
      }
    }
  }
  ++refused_;
  return failure(refusal);
}

// Admits a connection whose hello has a valid proof.
Result<Admission> VerbsSource::admit_locked(PoolLoan& loan, const SourceRail& rail,
                                            const wire::RdmaHello& hello) {
  if (hello.stream >= loan.last_attempts_.size())
    return failure(EACCES, "the session does not have the stream of this request");
  uint64_t& last_attempt = loan.last_attempts_[hello.stream];
  if (hello.attempt <= last_attempt) return failure(EACCES, "the proof was used before");
  for (PoolLoan::OnRail& on : loan.rails_) {
    if (on.rail != &rail) continue;
    last_attempt = hello.attempt;
    return Admission{on.domain, hello.stream};
  }
  return failure(EACCES, "the source did not offer this device to the session");
}

VerbsSource::Counters VerbsSource::counters() const {
  MutexLock lock(mutex_);
  Counters counters;
  for (auto& rail : rails_) counters.rails += !rail->lost;
  for (const PoolLoan* loan : loans_) {
    for (auto& on : loan->rails_) {
      if (!on.region) continue;
      ++counters.registered_regions;
      counters.registered_bytes += loan->pool_bytes_;
    }
  }
  counters.admitted = admitted_;
  counters.refused = refused_;
  return counters;
}

}  // namespace ppmr
