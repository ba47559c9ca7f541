#include "rdma_stream/verbs/verbs_target.h"

#include <algorithm>
#include <cassert>

#include "third_party/spdlog.h"

namespace ppmr {

// ---- One rail ----------------------------------------------------------------------------------

TargetRail::TargetRail(std::unique_ptr<Rail> rail, std::shared_ptr<Domain> domain,
                       size_t regions_max)
    : entries_(regions_max), domain_(std::move(domain)), rail_(std::move(rail)) {
  RailEvents events;
  events.lost = [this](const std::string& why) {
    spdlog::warn("RDMA device {} lost: {}", rail_->device(), why);
    lose(Error{ENODEV, "RDMA device " + rail_->device() + ": " + why});
  };
  rail_->start(std::move(events));
}

std::shared_ptr<Domain> TargetRail::domain() const {
  MutexLock lock(mutex_);
  return domain_;
}

Result<uint32_t> TargetRail::key(uint32_t region) {
  assert(region < entries_.size());
  const uint64_t known = entries_[region].key.load(std::memory_order_acquire);
  if (known != kUnknown) return static_cast<uint32_t>(known);
  MutexLock lock(mutex_);
  changed_.wait(mutex_,
                [&]() PPMR_REQUIRES(mutex_) { return lost_ || entries_[region].key != kUnknown; });
  if (lost_) return failure(*lost_);
  return static_cast<uint32_t>(entries_[region].key);
}

void TargetRail::register_region(uint32_t region, std::span<std::byte> memory) {
  const auto domain = this->domain();
  if (!domain || entries_[region].key != kUnknown) return;
  auto registered = domain->register_memory(memory, Rights::kLandReads);
  if (!registered) {
    spdlog::error("{}", registered.error().message);
    return lose(registered.error());
  }
  {
    MutexLock lock(mutex_);
    if (lost_) return;
    entries_[region].key.store((*registered)->local_key(), std::memory_order_release);
    entries_[region].region = std::move(*registered);
    ++counters_.registered_regions;
    counters_.registered_bytes += memory.size();
  }
  changed_.notify_all();
}

void TargetRail::lose(const Error& error) {
  std::vector<std::unique_ptr<Region>> regions;
  std::shared_ptr<Domain> domain;
  {
    MutexLock lock(mutex_);
    if (!lost_) lost_ = error;
    for (Entry& entry : entries_) {
      entry.key = kUnknown;
      if (entry.region) regions.push_back(std::move(entry.region));
    }
    domain = std::move(domain_);
    counters_ = {};
  }
  changed_.notify_all();
}

VerbsCounters TargetRail::counters() const {
  MutexLock lock(mutex_);
  VerbsCounters counters = counters_;
  counters.rails = !lost_;
  return counters;
}

// ---- All rails ---------------------------------------------------------------------------------

Result<std::unique_ptr<VerbsTarget>> VerbsTarget::create(Fabric& fabric, RailChoice choice,
                                                         size_t regions_max) {
  std::unique_ptr<VerbsTarget> target(new VerbsTarget(fabric, std::move(choice), regions_max));
  if (auto opened = target->open(); !opened) return failure(opened.error());
  return target;
}

VerbsTarget::VerbsTarget(Fabric& fabric, RailChoice choice, size_t regions_max)
    : fabric_(fabric),
      choice_(std::move(choice)),
      regions_max_(regions_max),
      registrar_([this] { register_regions(); }) {}

void VerbsTarget::close() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (registrar_.joinable()) registrar_.join();
  Rails rails;
  {
    MutexLock lock(mutex_);
    rails.swap(rails_);
  }
  for (auto& rail : rails) rail->lose(Error{ECANCELED, "the target ends"});
}

Status VerbsTarget::open() {
  MutexLock opening(opening_mutex_);
  Rails lost;
  {
    MutexLock lock(mutex_);
    if (!usable_locked().empty()) return {};
    lost.swap(rails_);
  }
  lost.clear();
  auto opened = fabric_.open(choice_, RailRole::kConnect);
  if (!opened) return failure(opened.error());
  Rails rails;
  Error last{ENODEV, "no rail"};
  for (auto& rail : *opened) {
    auto domain = rail->create_domain();
    if (!domain) {
      last = domain.error();
      spdlog::warn("{}", last.message);
      continue;
    }
    rails.push_back(
        std::make_shared<TargetRail>(std::move(rail), std::move(*domain), regions_max_));
  }
  if (rails.empty()) return failure(last);
  {
    MutexLock lock(mutex_);
    rails_ = std::move(rails);
    registered_ = false;
  }
  changed_.notify_all();
  return {};
}

VerbsTarget::Rails VerbsTarget::usable_locked() const {
  Rails usable;
  std::copy_if(rails_.begin(), rails_.end(), std::back_inserter(usable),
               [](const auto& rail) { return rail->domain() != nullptr; });
  return usable;
}

void VerbsTarget::region_mapped(uint32_t region, std::span<std::byte> memory) {
  assert(region < regions_max_);
  {
    MutexLock lock(mutex_);
    memory_[region] = memory;
    registered_ = false;
  }
  changed_.notify_all();
}

std::vector<std::shared_ptr<TargetRail>> VerbsTarget::rails() {
  (void)open();  // an error is ignored: the loss of each rail was logged with its reason
  MutexLock lock(mutex_);
  return usable_locked();
}

void VerbsTarget::register_regions() {
  MutexLock lock(mutex_);
  for (;;) {
    changed_.wait(mutex_, [&]() PPMR_REQUIRES(mutex_) { return stopping_ || !registered_; });
    if (stopping_) return;
    registered_ = true;
    const auto memory = memory_;
    Rails rails = rails_;
    lock.unlock();
    for (const auto& [region, bytes] : memory) {
      if (stopping_) return;
      for (const auto& rail : rails) rail->register_region(region, bytes);
    }
    rails.clear();  // unlocked: destroying a lost rail waits for that rail's thread
    lock.lock();
  }
}

VerbsCounters VerbsTarget::counters() const {
  MutexLock lock(mutex_);
  VerbsCounters counters;
  for (const auto& rail : rails_) {
    const VerbsCounters on = rail->counters();
    counters.rails += on.rails;
    counters.registered_bytes += on.registered_bytes;
    counters.registered_regions += on.registered_regions;
  }
  return counters;
}

}  // namespace ppmr
