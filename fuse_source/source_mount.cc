#include "fuse_source/source_mount.h"

#include "rdma_stream/verbs/verbs_fabric.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// At the end of the mount a target that is silent for so long is not waited for any more, whatever
// --peer-timeout says.
constexpr std::chrono::seconds kEndPatience{3};
constexpr std::chrono::milliseconds kLookInterval{100};

// Ends the session of a silent target. Threads: one creates and destroys it.
class Patience {
 public:
  explicit Patience(std::shared_ptr<Outlet> outlet)
      : outlet_(std::move(outlet)), thread_([this] { watch(); }) {}
  ~Patience() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLookInterval, [this] { return done_; })) {
      if (outlet_->counters().silence < kEndPatience) continue;
      outlet_->fail(Error{EIO, "the mount ended while the target was silent"});
      return;
    }
  }

  const std::shared_ptr<Outlet> outlet_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;   // guarded by mutex_
  std::thread thread_;  // last: uses all of the above
};

}  // namespace

Result<std::unique_ptr<SourceMount>> SourceMount::create(SourceOptions options) {
  Parts parts;
  auto pool = BufferPool::create(options.pool_size_bytes, options.chunk_size_bytes);
  if (!pool) return failure(pool.error());
  parts.pool = std::move(*pool);
  if (!options.discard) {
    auto made = options.security->connector(options.target_address);
    if (!made) return failure(made.error());
    parts.connector = std::move(*made);
    if (auto opened = open_verbs(options, parts); !opened) return failure(opened.error());
  }
  std::unique_ptr<SourceMount> mount(new SourceMount(std::move(options), std::move(parts)));
  auto outlet = mount->connect();
  if (!outlet) return failure(outlet.error());
  mount->outlet_ = *outlet;
  return mount;
}

// Finds and opens the RDMA devices, and has the sender offer them.
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
  {
    std::lock_guard lock(events_->mutex);
    events_->mount = nullptr;
  }
  {
    std::lock_guard lock(commits_mutex_);
    commits_stopping_ = true;
  }
  commit_requested_.notify_all();
  committer_.join();
}

Result<std::shared_ptr<Outlet>> SourceMount::connect() {
  if (options_.discard) return std::make_shared<DiscardOutlet>();
  SenderEvents events;
  events.seal_requested = [gate = events_](uint64_t node) {
    std::lock_guard lock(gate->mutex);
    if (gate->mount != nullptr) gate->mount->request_commit(node);
  };
  events.checkpoint_removed = [gate = events_](uint64_t node) {
    std::lock_guard lock(gate->mutex);
    if (gate->mount != nullptr) gate->mount->checkpoint_removed(node);
  };
  auto sender = Sender::open(options_.sender, *pool_, *connector_, std::move(events));
  if (!sender) return failure(sender.error());
  return std::shared_ptr<Outlet>(std::move(*sender));
}

// A session that has failed stays so; a new checkpoint begins a new one.
Result<std::shared_ptr<Outlet>> SourceMount::live_outlet_for_claim() {
  {
    std::lock_guard lock(outlet_mutex_);
    if (outlet_->status()) return outlet_;
  }
  auto outlet = connect();
  if (!outlet) return failure(EIO, outlet.error().message);
  spdlog::info("new session with {}", options_.target_address);
  std::lock_guard lock(outlet_mutex_);
  outlet_ = *outlet;
  return outlet_;
}

Status SourceMount::serve(const std::string& source_label, const std::function<void()>& mounted) {
  auto mount = FuseMount::create({.mountpoint = options_.mountpoint,
                                  .source_label = source_label,
                                  .allow_other = options_.allow_other},
                                 source_operations(), this);
  if (!mount) return failure(mount.error());
  RequestLoop loop(**mount, buffers_, RequestLoopOptions::for_buffers(pool_->slot_count()));
  {
    std::lock_guard lock(loop_mutex_);
    loop_ = &loop;
    if (stopping_) loop.stop();
  }
  mounted();
  bool unmounted = false;
  std::optional<Patience> patience;
  loop.run([&] {
    unmounted = !stopping_.exchange(true);
    patience.emplace(present_outlet());
  });
  {
    std::lock_guard lock(loop_mutex_);
    loop_ = nullptr;
  }
  (*mount)->stop();
  commit_what_is_closed(unmounted);
  return {};
}

std::shared_ptr<Outlet> SourceMount::present_outlet() {
  std::lock_guard lock(outlet_mutex_);
  return outlet_;
}

void SourceMount::stop() {
  stopping_ = true;
  std::lock_guard lock(loop_mutex_);
  if (loop_ != nullptr) loop_->stop();
}

wire::Space SourceMount::space() { return present_outlet()->space(); }

}  // namespace ppmr
