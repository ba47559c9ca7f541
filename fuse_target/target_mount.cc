#include "fuse_target/target_mount.h"

#include <algorithm>
#include <fstream>

#include "mount/fuse/caller.h"
#include "rdma_stream/verbs/verbs_fabric.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// Extents through which bytes pass to the spill disk: one for each of the chunks that are pulled at
// the same time, fewer if the memory limit is small.
constexpr size_t kBounceExtentsMax = 16;

Result<size_t> available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;) {
    if (word != "MemAvailable:") continue;
    size_t kib = 0;
    if (meminfo >> kib) return kib << 10;
  }
  return failure(EIO, "default memory limit: no MemAvailable in /proc/meminfo; use --memory-limit");
}

}  // namespace

Result<std::unique_ptr<TargetMount>> TargetMount::create(TargetOptions options) {
  Parts parts;
  auto listener = options.security->listener(options.listen_address);
  if (!listener) {
    return failure(listener.error().errno_value, "--listen: " + listener.error().message);
  }
  parts.listener = std::move(*listener);
  StoreOptions store;
  store.limit_bytes = options.limit_bytes;
  if (store.limit_bytes == 0) {
    const auto available = available_memory_bytes();
    if (!available) return failure(available.error());
    store.limit_bytes = std::max(*available / 2, 2 * kLimitMinBytes);
  }
  store.ready_bytes = options.ready_bytes;
  if (!options.spill_directory.empty()) {
    auto spill = SpillDirectory::open(options.spill_directory);
    if (!spill) return failure(spill.error());
    parts.spill = std::move(*spill);
    const size_t extents =
        std::clamp<size_t>(store.limit_bytes / kExtentBytes / 4, 2, kBounceExtentsMax);
    store.set_aside_bytes = extents * kExtentBytes;
  }
  if (auto opened = open_verbs(options, store.limit_bytes, parts); !opened) {
    return failure(opened.error());
  }
  if (parts.verbs) {
    store.region_mapped = [verbs = parts.verbs.get()](uint32_t region,
                                                      std::span<std::byte> memory) {
      verbs->region_mapped(region, memory);
    };
  }
  auto memory =
      StoreMemory::create(store, [upstream = parts.upstream.get()] { upstream->space_freed(); });
  if (!memory) return failure(memory.error());
  parts.memory = std::move(*memory);
  auto loans = Loans::create();
  if (!loans) return failure(loans.error());
  parts.loans = std::move(*loans);
  return std::unique_ptr<TargetMount>(new TargetMount(std::move(options), std::move(parts)));
}

// Opens the RDMA devices. The store registers each region when it is mapped.
Status TargetMount::open_verbs(const TargetOptions& options, size_t limit_bytes, Parts& parts) {
  if (options.transport.mode == TransportMode::kTcp) return {};
  parts.fabric = make_verbs_fabric(limit_bytes);
  auto verbs = VerbsTarget::create(*parts.fabric, options.transport.rails,
                                   (limit_bytes + kRegionBytes - 1) / kRegionBytes);
  if (verbs) {
    parts.verbs = std::move(*verbs);
    return {};
  }
  if (options.transport.mode == TransportMode::kVerbs || !options.transport.rails.devices.empty()) {
    return failure(verbs.error());
  }
  parts.why_no_verbs = verbs.error().message;
  spdlog::info("using tcp only: {}", parts.why_no_verbs);
  return {};
}

TargetMount::TargetMount(TargetOptions options, Parts parts)
    : options_(std::move(options)),
      upstream_(std::move(parts.upstream)),
      spill_(std::move(parts.spill)),
      fabric_(std::move(parts.fabric)),
      verbs_(std::move(parts.verbs)),
      memory_(std::move(parts.memory)),
      loans_(std::move(parts.loans)),
      storage_{*memory_, spill_.get(), options_.consume},
      parking_(caller_is_dying),
      tree_(storage_, parking_),
      agents_({.mountpoint = options_.mountpoint,
               .state_directory = options_.state_directory,
               .audit_file = options_.audit_file}),
      front_end_(tree_, parking_, *upstream_, *memory_, options_.consume, options_.wait_for_files) {
  ReceiverOptions receiver;
  receiver.peer_timeout = options_.peer_timeout;
  receiver.target_name = options_.target_name;
  receiver.trusted_fabric = options_.trusted_fabric;
  receiver.restart_peers = options_.restart_peers;
  if (options_.audit) {
    receiver.on_event = [audit = options_.audit](const ConnectionEvent& event) {
      audit->write(event);
    };
  }
  receiver.transport = {options_.transport.mode, verbs_.get(), parts.why_no_verbs};
  if (options_.allow_restart) {
    receiver.serve_agent = [this](Connection& connection, const std::string& node_name) {
      return agents_.serve(connection, node_name);
    };
  }
  receiver_ = std::make_unique<Receiver>(receiver, std::move(parts.listener), tree_);
  upstream_->attach(receiver_.get());
}

TargetMount::~TargetMount() {
  parking_.close();
  agents_.stop();
  upstream_->detach();  // waits for calls of the receiver in progress, such as space_freed()
  receiver_.reset();
  if (verbs_) verbs_->close();  // deregisters the memory before it is unmapped
}

Status TargetMount::serve(const std::string& source_label, const std::function<void()>& mounted) {
  HeapRequestBuffers buffers;
  return front_end_.serve(
      {.mountpoint = options_.mountpoint,
       .source_label = source_label,
       .allow_other = options_.allow_other},
      target_operations(), buffers, RequestLoopOptions::for_buffers(),
      // `ending` does nothing, because the target's request handlers never block. `ended` replies
      // to the parked requests, while the FUSE session still exists.
      {.mounted = mounted, .ending = [] {}, .ended = [this] { parking_.close(); }});
}

void TargetMount::stop() { front_end_.stop(); }

}  // namespace ppmr
