#include "rdma_stream/session/devices.h"

#include "rdma_stream/verbs/verbs_fabric.h"
#include "rdma_stream/verbs/verbs_source.h"
#include "rdma_stream/verbs/verbs_target.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

bool must_have_verbs(TransportMode mode, const RailChoice& choice) {
  return mode == TransportMode::kVerbs || !choice.devices.empty();
}

}  // namespace

SourceDevices::SourceDevices(TransportMode mode) : mode_(mode) {}
SourceDevices::~SourceDevices() = default;

Result<std::unique_ptr<SourceDevices>> SourceDevices::open(TransportMode mode,
                                                           const RailChoice& choice,
                                                           size_t pool_bytes) {
  std::unique_ptr<SourceDevices> devices(new SourceDevices(mode));
  if (mode == TransportMode::kTcp) return devices;
  devices->fabric_ = make_verbs_fabric(pool_bytes);
  auto verbs = VerbsSource::create(*devices->fabric_, choice);
  if (verbs) {
    devices->verbs_ = std::move(*verbs);
    return devices;
  }
  if (must_have_verbs(mode, choice)) return failure(verbs.error());
  devices->why_no_verbs_ = verbs.error().message;
  return devices;
}

SourceTransport SourceDevices::transport() const { return {mode_, verbs_.get(), why_no_verbs_}; }

TargetDevices::TargetDevices(TransportMode mode) : mode_(mode) {}
TargetDevices::~TargetDevices() = default;

Result<std::unique_ptr<TargetDevices>> TargetDevices::open(TransportMode mode,
                                                           const RailChoice& choice,
                                                           size_t limit_bytes,
                                                           size_t region_bytes) {
  std::unique_ptr<TargetDevices> devices(new TargetDevices(mode));
  if (mode == TransportMode::kTcp) return devices;
  devices->fabric_ = make_verbs_fabric(limit_bytes);
  auto verbs = VerbsTarget::create(*devices->fabric_, choice,
                                   (limit_bytes + region_bytes - 1) / region_bytes);
  if (verbs) {
    devices->verbs_ = std::move(*verbs);
    return devices;
  }
  if (must_have_verbs(mode, choice)) return failure(verbs.error());
  devices->why_no_verbs_ = verbs.error().message;
  spdlog::info("using tcp only: {}", devices->why_no_verbs_);
  return devices;
}

TargetTransport TargetDevices::transport() const { return {mode_, verbs_.get(), why_no_verbs_}; }

void TargetDevices::region_mapped(uint32_t region, std::span<std::byte> memory) const {
  if (verbs_) verbs_->region_mapped(region, memory);
}

void TargetDevices::close() {
  if (verbs_) verbs_->close();
}

}  // namespace ppmr
