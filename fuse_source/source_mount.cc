#include "fuse_source/source_mount.h"

#include <optional>
#include <system_error>

#include "base/mutex.h"
#include "fuse_source/pool_size.h"
#include "rdma_stream/verbs/verbs_fabric.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// When the mount ends, it fails the session of a target that has been silent for this long, even if
// --peer-timeout is longer.
constexpr std::chrono::seconds kSilenceAtEndMax{3};
constexpr std::chrono::milliseconds kCheckInterval{100};

// Fails the session of a silent target while the mount ends. Threads: one creates and destroys it.
class SilenceWatch {
 public:
  explicit SilenceWatch(std::shared_ptr<Outlet> outlet)
      : outlet_(std::move(outlet)), thread_([this] { watch(); }) {}
  ~SilenceWatch() {
    {
      MutexLock lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void watch() {
    const Status failed = without_exceptions([this]() -> Status {
      MutexLock lock(mutex_);
      while (!changed_.wait_for(mutex_, kCheckInterval,
                                [this]() PPMR_REQUIRES(mutex_) { return done_; })) {
        if (outlet_->counters().silence < kSilenceAtEndMax) continue;
        outlet_->fail(Error{EIO, "the mount ended while the target was silent"});
        break;
      }
      return {};
    });
    if (!failed) spdlog::warn("watch for a silent target: {}", failed.error().message);
  }

  const std::shared_ptr<Outlet> outlet_;
  Mutex mutex_;
  CondVar changed_;
  bool done_ PPMR_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last, because the thread uses all members above
};

}  // namespace

Result<std::unique_ptr<SourceMount>> SourceMount::create(SourceOptions options,
                                                         std::unique_ptr<Connector> connector) {
  Parts parts;
  if (options.pool_size_bytes == 0) {
    options.pool_size_bytes =
        pool_size_for(round_trip_to_target(options), options.chunk_size_bytes);
  }
  auto pool = BufferPool::create(options.pool_size_bytes, options.chunk_size_bytes);
  if (!pool) return failure(pool.error());
  parts.pool = std::move(*pool);
  if (!options.discard) {
    if (!connector) {
      auto made = options.security->connector(options.target_address, PeerRole::kSource);
      if (!made) return failure(made.error());
      connector = std::move(*made);
    }
    parts.connector = std::move(connector);
    if (auto opened = open_verbs(options, parts); !opened) return failure(opened.error());
  }
  std::unique_ptr<SourceMount> mount;
  const Status created = without_exceptions([&]() -> Status {
    mount.reset(new SourceMount(std::move(options), std::move(parts)));
    auto outlet = mount->connect();
    if (!outlet) return failure(outlet.error());
    MutexLock lock(mount->outlet_mutex_);
    mount->outlet_ = *outlet;
    if (mount->options_.discard) return {};
    mount->reconnector_.emplace(mount->options_.reconnect_interval, [&of = *mount]() -> Status {
      const auto live = of.live_outlet();
      return live ? Status{} : failure(live.error());
    });
    return {};
  });
  if (!created) return failure(created.error());
  return mount;
}

// Opens the RDMA devices; the sender offers them to the target.
Status SourceMount::open_verbs(SourceOptions& options, Parts& parts) {
  SourceTransport transport;
  transport.mode = options.transport.mode;
  if (transport.mode != TransportMode::kTcp) {
    parts.fabric = make_verbs_fabric(parts.pool->memory().size());
    auto verbs = VerbsSource::create(*parts.fabric, options.transport.rails);
    if (verbs) {
      parts.verbs = std::move(*verbs);
    } else if (transport.mode == TransportMode::kVerbs ||
               !options.transport.rails.devices.empty()) {
      return failure(verbs.error());
    } else {
      transport.why_no_verbs = verbs.error().message;
    }
  }
  transport.verbs = parts.verbs.get();
  options.sender.transport = transport;
  return {};
}

SourceMount::SourceMount(SourceOptions options, Parts parts)
    : options_(std::move(options)),
      pool_(std::move(parts.pool)),
      connector_(std::move(parts.connector)),
      fabric_(std::move(parts.fabric)),
      verbs_(std::move(parts.verbs)),
      buffers_(*pool_),
      events_(std::make_shared<EventGate>()),
      committer_([this] { serve_commit_requests(); }) {
  events_->mount = this;
}

SourceMount::~SourceMount() {
  reconnector_.reset();
  {
    MutexLock lock(events_->mutex);
    events_->mount = nullptr;
  }
  {
    MutexLock lock(commits_mutex_);
    commits_stopping_ = true;
  }
  commit_requested_.notify_all();
  committer_.join();
}

Result<std::shared_ptr<Outlet>> SourceMount::connect() {
  if (options_.discard) return std::make_shared<DiscardOutlet>();
  SenderEvents events;
  events.seal_requested = [gate = events_](uint64_t node) {
    MutexLock lock(gate->mutex);
    if (gate->mount != nullptr) gate->mount->request_commit(node);
  };
  events.checkpoint_removed = [gate = events_](uint64_t node) {
    MutexLock lock(gate->mutex);
    if (gate->mount != nullptr) gate->mount->checkpoint_removed(node);
  };
  events.bytes_wanted = [gate = events_](uint64_t node, uint64_t offset, uint64_t length) {
    MutexLock lock(gate->mutex);
    if (gate->mount != nullptr) gate->mount->bytes_wanted(node, offset, length);
  };
  auto sender = Sender::open(options_.sender, *pool_, *connector_, std::move(events));
  if (!sender) return failure(sender.error());
  return std::shared_ptr<Outlet>(std::move(*sender));
}

// Returns the outlet for a new checkpoint. A failed session stays failed, so a new session replaces
// it.
Result<std::shared_ptr<Outlet>> SourceMount::live_outlet() {
  MutexLock one_at_a_time(sessions_mutex_);
  {
    MutexLock lock(outlet_mutex_);
    if (outlet_->status()) return outlet_;
  }
  pool_->wipe();  // the new session may be with another target
  auto outlet = connect();
  if (!outlet) return failure(EIO, outlet.error().message);
  spdlog::info("new session with {}", options_.target_address);
  MutexLock lock(outlet_mutex_);
  earlier_.add(outlet_->counters());
  outlet_ = *outlet;
  return outlet_;
}

Status SourceMount::serve(const std::function<void()>& mounted) {
  bool unmounted = false;
  std::optional<SilenceWatch> silence_watch;
  const auto ending = [&] {
    unmounted = !stopping_.exchange(true);
    try {
      silence_watch.emplace(present_outlet());
    } catch (const std::system_error& exception) {
      spdlog::warn("cannot start a thread that watches the target: {}", exception.what());
    }
  };
  return FrontEnd::serve(
      [this] { return options_.helper->mount(); }, source_operations(), buffers_,
      RequestLoopOptions::for_buffers(pool_->slot_count()),
      {.mounted = mounted, .ending = ending, .ended = [&] { seal_closed_checkpoints(unmounted); }});
}

void SourceMount::stop() {
  stopping_ = true;
  FrontEnd::stop();
}

std::shared_ptr<Outlet> SourceMount::present_outlet() {
  MutexLock lock(outlet_mutex_);
  return outlet_;
}

void OutletTotals::add(const OutletCounters& session) {
  bytes += session.verified_bytes;
  wire_bytes += session.wire_bytes;
  chunks += session.chunks;
  inline_chunks += session.inline_chunks;
  reconnections += session.reconnections;
}

OutletTotals SourceMount::totals() {
  MutexLock lock(outlet_mutex_);
  OutletTotals totals = earlier_;
  totals.add(outlet_->counters());
  return totals;
}

wire::Space SourceMount::space() { return present_outlet()->space(); }

void SourceMount::forget(uint64_t inode, uint64_t lookups) noexcept {
  tree_.forget(inode, lookups);
}

Result<mode_t> SourceMount::mode_of(uint64_t inode) {
  const SourceNodePointer node = tree_.find(inode);
  if (!node) return failure(ESTALE, "inode " + std::to_string(inode) + ": it was removed");
  return stat_of(tree_.view(node)).st_mode;
}

// An open directory counts as an open handle: at SIGTERM, the mount does not seal a checkpoint with
// an open directory.
Result<ListDirectory> SourceMount::open_directory(uint64_t inode) {
  SourceNodePointer node = tree_.find(inode);
  if (!node) return failure(ESTALE, "directory " + std::to_string(inode) + ": it was removed");
  const auto close = [this, node](void*) {
    MutexLock lock(tree_.mutex());
    tree_.close_handle_locked(node);
  };
  MutexLock lock(tree_.mutex());
  ++node->open_handles;
  return [this, node, open = std::shared_ptr<void>(this, close)] { return tree_.entries(node); };
}

}  // namespace ppmr
