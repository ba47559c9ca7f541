#include "fuse_target/target_mount.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// The largest number of extents through which bytes pass to the spill disk: one for each chunk that
// is pulled at the same time. There are fewer if the memory limit is small.
constexpr size_t kBounceExtentsMax = 16;
constexpr size_t kNameExtentsMax = 32;  // enough for the names of 50,000 files

Status check_lockable(size_t bytes, const Confinement& confinement) {
  rlimit limit{};
  if (confinement.capabilities != "none") return {};  // CAP_IPC_LOCK
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur >= bytes) return {};
  return failure(EINVAL, "--mlock: this user may lock only " +
                             std::to_string(limit.rlim_cur >> 20) +
                             " MiB of memory; raise the limit (ulimit -l) above --memory-limit");
}

}  // namespace

Result<std::unique_ptr<TargetMount>> TargetMount::create(TargetOptions options,
                                                         std::unique_ptr<Listener> listener) {
  Parts parts;
  parts.listener = std::move(listener);
  StoreOptions store;
  store.limit_bytes = options.limit_bytes;
  store.ready_bytes = options.ready_bytes;
  if (!options.spill_directory.empty()) {
    auto spill = SpillDirectory::open(
        options.spill_directory, [helper = options.helper] { return helper->create_spill_file(); },
        options.spill_limit_bytes == 0 ? UINT64_MAX : options.spill_limit_bytes);
    if (!spill) return failure(spill.error());
    parts.spill = std::move(*spill);
    const size_t extents =
        std::clamp<size_t>(store.limit_bytes / kExtentBytes / 4, 2, kBounceExtentsMax);
    store.set_aside_bytes = extents * kExtentBytes;
    store.for_charges_bytes =
        std::clamp<size_t>(store.limit_bytes / kExtentBytes / 16, 1, kNameExtentsMax) *
        kExtentBytes;
  }
  auto devices = TargetDevices::open(options.transport.mode, options.transport.rails,
                                     store.limit_bytes, kRegionBytes);
  if (!devices) return failure(devices.error());
  parts.devices = std::move(*devices);
  if (options.lock_memory) {
    if (Status lockable = check_lockable(store.limit_bytes, options.confinement); !lockable) {
      return failure(lockable.error());
    }
  }
  store.region_mapped = [devices = parts.devices.get(), lock = options.lock_memory](
                            uint32_t region, std::span<std::byte> memory) {
    if (lock && ::mlock2(memory.data(), memory.size(), MLOCK_ONFAULT) != 0) {
      spdlog::error("--mlock: images may be swapped out: mlock: {}", std::strerror(errno));
    }
    devices->region_mapped(region, memory);
  };
  store.gives_back = !parts.devices->keeps_memory();
  auto memory =
      StoreMemory::create(store, [upstream = parts.upstream.get()] { upstream->space_freed(); });
  if (!memory) return failure(memory.error());
  parts.memory = std::move(*memory);
  auto loans = Loans::create();
  if (!loans) return failure(loans.error());
  parts.loans = std::move(*loans);
  auto listening = std::move(parts.listener);
  std::unique_ptr<TargetMount> mount(new TargetMount(std::move(options), std::move(parts)));
  if (mount->keeper_) {
    if (Status loaded = mount->keeper_->load(); !loaded) return failure(loaded.error());
  }
  // The port was open before, but the target has served no source yet.
  mount->start_receiver(std::move(listening));
  return mount;
}

TargetMount::TargetMount(TargetOptions options, Parts parts)
    : options_(std::move(options)),
      upstream_(std::move(parts.upstream)),
      spill_(std::move(parts.spill)),
      devices_(std::move(parts.devices)),
      memory_(std::move(parts.memory)),
      loans_(std::move(parts.loans)),
      storage_{*memory_, spill_.get(), options_.consume,
               [this] { return keeper_ && keeper_->give_back_oldest(); },
               [this] { return keeper_ ? keeper_->bytes_to_give_back() : 0; }},
      parking_([helper = options_.helper](pid_t process) { return helper->is_dying(process); }),
      tree_(storage_, parking_, [this](const std::string& name) { front_end_.name_removed(name); }),
      agents_(options_.helper),
      keeper_(make_keeper()),
      front_end_(tree_, parking_, *upstream_, *memory_, keeper_.get(), options_.consume,
                 options_.wait_for_files) {}

void TargetMount::start_receiver(std::unique_ptr<Listener> listener) {
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
  receiver.transport = devices_->transport();
  if (options_.allow_restart) {
    receiver.serve_agent = [this](Connection& connection, const std::string& node_name) {
      return serve_agent(connection, node_name);
    };
  }
  receiver_ = std::make_unique<Receiver>(receiver, std::move(listener), tree_);
  upstream_->attach(receiver_.get());
}

Status TargetMount::serve_agent(Connection& connection, const std::string& node_name) {
  ++working_agents_;
  const Status served = agents_.serve(connection, node_name);
  --working_agents_;
  return served;
}

std::unique_ptr<Keeper> TargetMount::make_keeper() {
  if (options_.keep_directory.empty()) return nullptr;
  return std::make_unique<Keeper>(
      *options_.helper, options_.keep_keys,
      KeeperOptions{.directory = options_.keep_directory, .retention = options_.keep_limits}, tree_,
      *memory_);
}

TargetMount::~TargetMount() {
  if (keeper_) keeper_->stop();
  parking_.close();
  agents_.stop();
  upstream_->detach();  // waits for the receiver's calls in progress, such as space_freed()
  receiver_.reset();
  devices_->close();
}

Status TargetMount::serve(const std::function<void()>& mounted) {
  HeapRequestBuffers buffers;
  return front_end_.serve(
      [this] { return options_.helper->mount(); }, target_operations(), buffers,
      RequestLoopOptions::for_buffers(),
      // `ending` is empty, because the target's request handlers never block. `ended` replies to
      // the parked requests, while the FUSE session still exists.
      {.mounted =
           [&] {
             if (keeper_) keeper_->start();
             mounted();
           },
       .ending = [] {},
       .ended =
           [this] {
             if (keeper_) keeper_->stop();  // replies to removals
             parking_.close();
           }});
}

void TargetMount::stop() { front_end_.stop(); }

}  // namespace ppmr
