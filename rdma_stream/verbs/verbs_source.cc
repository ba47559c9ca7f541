#include "rdma_stream/verbs/verbs_source.h"

#include <algorithm>

#include "rdma_stream/connection/handshake.h"
#include "rdma_stream/connection/session_proof.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// Connections of a session: more than streams, as rails may outnumber them.
uint32_t connections_max(uint32_t stream_count) { return std::max(stream_count, wire::kRailsMax); }

}  // namespace

// ---- Loans -------------------------------------------------------------------------------------

PoolLoan::~PoolLoan() { source_.end(*this); }

Result<std::unique_ptr<PoolLoan>> VerbsSource::lend(const BufferPool& pool, uint32_t stream_count) {
  if (auto opened = open(); !opened) return failure(opened.error());
  std::vector<std::shared_ptr<Rail>> rails;
  size_t opening = 0;
  {
    std::lock_guard lock(mutex_);
    rails = rails_;
    opening = opening_;
  }
  std::unique_ptr<PoolLoan> loan(new PoolLoan(*this, opening));
  loan->stream_count_ = stream_count;
  loan->pool_bytes_ = pool.memory().size();
  wire::TransportOffer& offer = loan->offer_;
  offer.secret = random_token();
  offer.pool_address = reinterpret_cast<uintptr_t>(pool.payload(0).data());
  offer.slot_stride = pool.slot_stride_bytes();
  Error last{ENODEV, "no RDMA device is left"};
  for (size_t i = 0; i < rails.size(); ++i) {
    if (!rails[i]) continue;
    PoolLoan::OnRail on{i, nullptr, nullptr};
    if (auto domain = rails[i]->create_domain(); !domain) {
      last = domain.error();
      continue;
    } else {
      on.domain = std::move(*domain);
    }
    auto region = on.domain->register_memory(pool.memory(), Rights::kReadByPeer);
    if (!region) {
      last = region.error();
      spdlog::warn("{}", last.message);
      continue;
    }
    on.region = std::move(*region);
    wire::Rail& rail = offer.rails[offer.rail_count++];
    rail.address = rails[i]->address().ip;
    rail.port = rails[i]->address().port;
    rail.key = on.region->peer_key();
    loan->rails_.push_back(std::move(on));
  }
  if (offer.rail_count == 0) return failure(last);
  std::lock_guard lock(mutex_);
  loans_.push_back(loan.get());
  // What was lost meanwhile was not among the loans then.
  for (PoolLoan::OnRail& on : loan->rails_) {
    if (opening != opening_ || !rails_[on.rail]) on = {on.rail, nullptr, nullptr};
  }
  return loan;
}

void VerbsSource::end(PoolLoan& loan) {
  std::vector<PoolLoan::OnRail> rails;
  {
    std::lock_guard lock(mutex_);
    std::erase(loans_, &loan);
    rails.swap(loan.rails_);
  }
  // Connections first: a region is in use while they are.
  for (auto& on : rails) {
    if (on.domain) on.domain->close();
    on.region.reset();
  }
}

// ---- Rails -------------------------------------------------------------------------------------

Result<std::unique_ptr<VerbsSource>> VerbsSource::create(Fabric& fabric, RailChoice choice) {
  std::unique_ptr<VerbsSource> source(new VerbsSource(fabric, std::move(choice)));
  if (auto opened = source->open(); !opened) return failure(opened.error());
  return source;
}

VerbsSource::~VerbsSource() {
  std::vector<std::shared_ptr<Rail>> rails;
  std::lock_guard opening_lock(opening_mutex_);
  {
    std::lock_guard lock(mutex_);
    ++opening_;  // what they still tell concerns nobody
    rails.swap(rails_);
    std::move(buried_.begin(), buried_.end(), std::back_inserter(rails));
  }
}

Status VerbsSource::open() {
  std::lock_guard opening_lock(opening_mutex_);
  std::vector<std::shared_ptr<Rail>> buried;
  size_t opening = 0;
  {
    std::lock_guard lock(mutex_);
    buried.swap(buried_);
    if (std::any_of(rails_.begin(), rails_.end(), [](auto& rail) { return rail != nullptr; })) {
      return {};
    }
    opening = ++opening_;
    rails_.clear();
    lost_early_.clear();
  }
  buried.clear();  // its port may be taken again
  RailEvents events;
  events.admit = [this, opening](size_t rail, std::span<const std::byte> private_data) {
    return admit(opening, rail, private_data);
  };
  events.lost = [this, opening](size_t rail, const std::string& why) { lost(opening, rail, why); };
  auto opened = fabric_.open(choice_, std::move(events));
  if (!opened) return failure(opened.error());
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < opened->size(); ++i) {
    const bool lost = lost_early_.contains(i);
    (lost ? buried_ : rails_).push_back(std::move((*opened)[i]));
    if (lost) rails_.push_back(nullptr);
  }
  return {};
}

void VerbsSource::lost(size_t opening, size_t rail, const std::string& why) {
  std::vector<PoolLoan::OnRail> ended;
  {
    std::lock_guard lock(mutex_);
    if (opening != opening_) return;
    if (rail >= rails_.size()) lost_early_.insert(rail);
    if (rail >= rails_.size() || !rails_[rail]) return;
    spdlog::warn("RDMA device {} lost: {}", rails_[rail]->device(), why);
    buried_.push_back(std::exchange(rails_[rail], nullptr));
    for (PoolLoan* loan : loans_) {
      if (loan->opening_ != opening) continue;
      for (PoolLoan::OnRail& on : loan->rails_) {
        if (on.rail == rail) ended.push_back(std::exchange(on, {rail, nullptr, nullptr}));
      }
    }
  }
  for (auto& on : ended) {
    if (on.domain) on.domain->close();
    on.region.reset();
  }
}

// ---- Connections -------------------------------------------------------------------------------

Result<Admission> VerbsSource::admit(size_t opening, size_t rail,
                                     std::span<const std::byte> private_data) {
  // What follows the hello is padding of the connection manager's.
  if (private_data.size() > wire::kRdmaHelloBytes) {
    private_data = private_data.first(wire::kRdmaHelloBytes);
  }
  const auto hello = wire::decode<wire::RdmaHello>(private_data);
  Error refusal{EPROTO, "not a ppmr target"};
  std::lock_guard lock(mutex_);
  if (hello && hello->magic == wire::kMagic) {
    if (hello->version != wire::kVersion) {
      refusal.message = "another version of the protocol";
    } else {
      refusal = Error{EACCES, "no session has this secret"};
      for (PoolLoan* loan : loans_) {
        if (loan->opening_ != opening || !equal_secrets(loan->offer_.secret, hello->secret))
          continue;
        refusal.message = "stream out of range";
        if (hello->stream >= connections_max(loan->stream_count_)) continue;
        refusal.message = "the device was lost";
        for (PoolLoan::OnRail& on : loan->rails_) {
          if (on.rail != rail || !on.domain) continue;
          ++admitted_;
          return Admission{on.domain, hello->stream};
        }
      }
    }
  }
  ++refused_;
  return failure(refusal);
}

VerbsSource::Counters VerbsSource::counters() const {
  std::lock_guard lock(mutex_);
  Counters counters;
  for (auto& rail : rails_) counters.rails += rail != nullptr;
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
