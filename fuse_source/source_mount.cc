#include "fuse_source/source_mount.h"

#include <optional>
#include <system_error>

#include "base/mutex.h"
#include "fuse_source/pool_size.h"
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
  if (options.pool_size_bytes == 0) {
    options.pool_size_bytes =
        pool_size_for(round_trip_to_target(options), options.chunk_size_bytes);
  }
  auto pool = BufferPool::create(options.pool_size_bytes, options.chunk_size_bytes);
  if (!pool) return failure(pool.error());
  auto sessions = TargetSessions::create(options, **pool, std::move(connector));
  if (!sessions) return failure(sessions.error());
  std::unique_ptr<SourceMount> mount;
  const Status created = without_exceptions([&]() -> Status {
    mount.reset(new SourceMount(std::move(options), std::move(*pool), std::move(*sessions)));
    return mount->sessions_->start(mount->events());
  });
  if (!created) return failure(created.error());
  return mount;
}

SourceMount::SourceMount(SourceOptions options, std::unique_ptr<BufferPool> pool,
                         std::unique_ptr<TargetSessions> sessions)
    : options_(std::move(options)),
      pool_(std::move(pool)),
      sessions_(std::move(sessions)),
      buffers_(*pool_),
      seal_requests_([this](uint64_t top_node) { serve_seal_request(top_node); }) {}

SourceMount::~SourceMount() { sessions_->stop(); }

SenderEvents SourceMount::events() {
  return {.seal_requested = [this](uint64_t top_node) { seal_requests_.add(top_node); },
          .checkpoint_removed = [this](uint64_t top_node) { checkpoint_removed(top_node); },
          .bytes_wanted = [this](uint64_t node, uint64_t offset,
                                 uint64_t length) { bytes_wanted(node, offset, length); }};
}

Status SourceMount::serve(const std::function<void()>& mounted) {
  bool unmounted = false;
  std::optional<SilenceWatch> silence_watch;
  const auto ending = [&] {
    unmounted = !stopping_.exchange(true);
    try {
      silence_watch.emplace(sessions_->present());
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

wire::Space SourceMount::space() { return sessions_->present()->space(); }

void SourceMount::forget(uint64_t inode, uint64_t lookups) noexcept {
  tree_.forget(inode, lookups);
}

Result<mode_t> SourceMount::mode_of(uint64_t inode) {
  const SourceNodePointer node = tree_.find(inode);
  if (!node) return failure(ESTALE, "find inode " + std::to_string(inode) + ": it was removed");
  return stat_of(tree_.view(node)).st_mode;
}

// An open directory counts as an open handle: at SIGTERM, the mount does not seal a checkpoint with
// an open directory.
Result<ListDirectory> SourceMount::open_directory(uint64_t inode) {
  SourceNodePointer node = tree_.find(inode);
  if (!node) return failure(ESTALE, "list directory " + std::to_string(inode) + ": it was removed");
  const auto close = [this, node](void*) {
    MutexLock lock(tree_.mutex());
    tree_.close_handle_locked(node);
  };
  MutexLock lock(tree_.mutex());
  ++node->open_handles;
  return [this, node, open = std::shared_ptr<void>(this, close)] { return tree_.entries(node); };
}

}  // namespace ppmr
