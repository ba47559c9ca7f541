#include "fuse_source/source_mount.h"

#include <spdlog/spdlog.h>

#include "rdma_stream/tcp_connection.h"

namespace ppmr {

Result<std::unique_ptr<SourceMount>> SourceMount::create(SourceOptions options) {
  auto pool = BufferPool::create(options.pool_size_bytes, options.chunk_size_bytes);
  if (!pool) return failure(pool.error());
  std::unique_ptr<Connector> connector;
  if (!options.discard) {
    auto made = tcp_connector(options.target_address);
    if (!made) return failure(made.error());
    connector = std::move(*made);
  }
  std::unique_ptr<SourceMount> mount(
      new SourceMount(std::move(options), std::move(*pool), std::move(connector)));
  auto outlet = mount->connect();
  if (!outlet) return failure(outlet.error());
  mount->outlet_ = *outlet;
  return mount;
}

SourceMount::SourceMount(SourceOptions options, std::unique_ptr<BufferPool> pool,
                         std::unique_ptr<Connector> connector)
    : options_(std::move(options)),
      pool_(std::move(pool)),
      connector_(std::move(connector)),
      buffers_(*pool_),
      committer_([this] { serve_commit_requests(); }) {}

SourceMount::~SourceMount() {
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
  events.seal_requested = [this](uint64_t node) { request_commit(node); };
  events.checkpoint_removed = [this](uint64_t node) { checkpoint_removed(node); };
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
  RequestLoop loop(**mount, buffers_);
  {
    std::lock_guard lock(loop_mutex_);
    loop_ = &loop;
    if (stopping_) loop.stop();
  }
  mounted();
  loop.run();
  {
    std::lock_guard lock(loop_mutex_);
    loop_ = nullptr;
  }
  const bool unmounted = !stopping_.exchange(true);
  (*mount)->stop();
  commit_what_is_closed(unmounted);
  return {};
}

void SourceMount::stop() {
  stopping_ = true;
  std::lock_guard lock(loop_mutex_);
  if (loop_ != nullptr) loop_->stop();
}

wire::Space SourceMount::space() {
  std::shared_ptr<Outlet> outlet;
  {
    std::lock_guard lock(outlet_mutex_);
    outlet = outlet_;
  }
  return outlet->space();
}

}  // namespace ppmr
