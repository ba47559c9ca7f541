#include "rdma_stream/verbs/verbs_target.h"

#include <algorithm>
#include <cassert>

#include "third_party/spdlog.h"

namespace ppmr {

// ---- One rail ----------------------------------------------------------------------------------

std::shared_ptr<Domain> TargetRail::domain() const {
  std::lock_guard lock(mutex_);
  return domain_;
}

Result<uint32_t> TargetRail::key(uint32_t region) {
  assert(region < entries_.size());
  const uint64_t known = entries_[region].key.load(std::memory_order_acquire);
  if (known != kUnknown) return static_cast<uint32_t>(known);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || entries_[region].key != kUnknown; });
  if (failed_) return failure(*failed_);
  return static_cast<uint32_t>(entries_[region].key);
}

void TargetRail::fail(const Error& error) {
  std::vector<std::unique_ptr<Region>> regions;
  std::shared_ptr<Domain> domain;
  {
    std::lock_guard lock(mutex_);
    if (!failed_) failed_ = error;
    for (Entry& entry : entries_) {
      entry.key = kUnknown;
      if (entry.region) regions.push_back(std::move(entry.region));
    }
    domain = std::move(domain_);
  }
  changed_.notify_all();
}

// ---- All of them -------------------------------------------------------------------------------

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
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (registrar_.joinable()) registrar_.join();
  // Those that watch the rails call lost(): they end here, without a lock.
  std::vector<OpenRail> rails;
  {
    std::lock_guard lock(mutex_);
    rails.swap(rails_);
  }
  for (OpenRail& open : rails) open.rail->fail(Error{ECANCELED, "the target ends"});
}

Status VerbsTarget::open() {
  std::lock_guard opening(opening_mutex_);
  size_t number = 0;
  {
    std::lock_guard lock(mutex_);
    if (!rails_.empty()) return {};
    number = openings_++;
  }
  RailEvents events;
  events.lost = [this, number](size_t rail, const std::string& why) { lost({number, rail}, why); };
  auto opened = fabric_.open(choice_, std::move(events));
  if (!opened) return failure(opened.error());
  std::vector<OpenRail> rails;
  Error last{ENODEV, "no rail"};
  for (size_t i = 0; i < opened->size(); ++i) {
    auto domain = (*opened)[i]->create_domain();
    if (!domain) {
      last = domain.error();
      spdlog::warn("{}", last.message);
      continue;
    }
    rails.push_back(
        {{number, i},
         std::make_shared<TargetRail>(std::move((*opened)[i]), std::move(*domain), regions_max_)});
  }
  if (rails.empty()) return failure(last);
  std::lock_guard lock(mutex_);
  for (OpenRail& open : rails) {
    if (lost_.contains(open.number)) {
      open.rail->fail(Error{ENODEV, "the device was removed"});
      buried_.push_back(std::move(open.rail));
    } else {
      rails_.push_back(std::move(open));
    }
  }
  changed_.notify_all();
  return {};
}

void VerbsTarget::lost(std::pair<size_t, size_t> number, const std::string& why) {
  std::shared_ptr<TargetRail> rail;
  {
    std::lock_guard lock(mutex_);
    lost_.insert(number);
    const auto found = std::find_if(rails_.begin(), rails_.end(),
                                    [&](const OpenRail& open) { return open.number == number; });
    if (found == rails_.end()) return;
    rail = std::move(found->rail);
    rails_.erase(found);
  }
  spdlog::warn("RDMA device {} lost: {}", rail->rail().device(), why);
  rail->fail(Error{ENODEV, "RDMA device " + rail->rail().device() + ": " + why});
  {
    // Not destroyed here: this is the rail's own thread.
    std::lock_guard lock(mutex_);
    buried_.push_back(std::move(rail));
  }
  changed_.notify_all();
}

void VerbsTarget::region_mapped(uint32_t region, std::span<std::byte> memory) {
  assert(region < regions_max_);
  {
    std::lock_guard lock(mutex_);
    memory_[region] = memory;
  }
  changed_.notify_all();
}

std::vector<std::shared_ptr<TargetRail>> VerbsTarget::rails() {
  std::vector<std::shared_ptr<TargetRail>> rails;
  // What was lost may have come back. The error, if not, was told when it was lost.
  (void)open();
  std::lock_guard lock(mutex_);
  for (OpenRail& open : rails_) rails.push_back(open.rail);
  return rails;
}

void VerbsTarget::register_regions() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!buried_.empty()) {
      // A rail that a puller still holds dies with that puller.
      auto buried = std::exchange(buried_, {});
      lock.unlock();
      buried.clear();
      lock.lock();
      continue;
    }
    if (!register_next(lock)) changed_.wait(lock);
  }
}

// Registers one region on one rail; false when there is none to be registered.
bool VerbsTarget::register_next(std::unique_lock<std::mutex>& lock) {
  for (OpenRail& open : rails_) {
    const auto next = std::find_if(memory_.begin(), memory_.end(), [&](const auto& entry) {
      return !open.regions.contains(entry.first);
    });
    if (next == memory_.end()) continue;
    const auto [region, memory] = *next;
    open.regions.insert(region);
    const auto number = open.number;
    const std::shared_ptr<TargetRail> rail = open.rail;
    const auto domain = rail->domain();
    if (!domain) return true;
    lock.unlock();
    auto registered = domain->register_memory(memory, Rights::kLandReads);
    if (!registered) {
      spdlog::error("{}", registered.error().message);
      rail->fail(registered.error());
    } else {
      std::lock_guard rail_lock(rail->mutex_);
      if (!rail->failed_) {
        rail->entries_[region].key.store((*registered)->local_key(), std::memory_order_release);
        rail->entries_[region].region = std::move(*registered);
      }
    }
    rail->changed_.notify_all();
    lock.lock();
    const auto found = std::find_if(rails_.begin(), rails_.end(),
                                    [&](const OpenRail& other) { return other.number == number; });
    if (found == rails_.end()) return true;
    if (registered) {
      found->bytes += memory.size();
      ++found->region_count;
    } else {  // it cannot be used for this store
      buried_.push_back(found->rail);
      rails_.erase(found);
    }
    return true;
  }
  return false;
}

VerbsCounters VerbsTarget::counters() const {
  std::lock_guard lock(mutex_);
  VerbsCounters counters;
  counters.rails = rails_.size();
  for (const OpenRail& open : rails_) {
    counters.registered_bytes += open.bytes;
    counters.registered_regions += open.region_count;
  }
  return counters;
}

}  // namespace ppmr
