#include "rdma_stream/verbs/verbs_rail.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>

#include "base/mapped_memory.h"
#include "rdma_stream/verbs/verbs_window.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// Devices allow about 16 reads in flight on a queue pair; a higher limit only takes device memory.
constexpr uint32_t kReadsAtOnceMax = 16;
constexpr int kBacklog = 64;
constexpr int kReleaseCheckIntervalMs = 20;
// Maximum length of the text in the private data of a rejection.
constexpr size_t kRejectTextMaxBytes = 100;

// With most drivers the kernel removes a device only after every process has closed it, but
// librdmacm keeps the device's context open. So this function replaces the context's descriptors by
// /dev/null. The caller must hold an rdma_cm_id of the device: while this id exists, librdmacm does
// not close these descriptors, so no other file can get their numbers.
void close_device(const ibv_context& context) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return;
  ::dup3(null.get(), context.cmd_fd, O_CLOEXEC);
  ::dup3(null.get(), context.async_fd, O_CLOEXEC);
}

// Returns `address` with the port to which `anchor` is bound.
RailAddress bound_address(RailAddress address, const Anchor& anchor) {
  address.port = ntohs(rdma_get_src_port(anchor.id.get()));
  return address;
}

void reject(VerbsPointer<rdma_cm_id> id, const std::string& why) {
  (void)rdma_reject(id.get(), why.data(),
                    static_cast<uint8_t>(std::min(why.size(), kRejectTextMaxBytes)));
}

}  // namespace

Result<std::unique_ptr<VerbsRail>> VerbsRail::open(const RdmaPort& port, const RailAddress& address,
                                                   RailRole role) {
  auto stop = WakeEvent::create();
  if (!stop) return failure(stop.error());
  auto anchor = bind_anchor(address);
  if (!anchor) return failure(anchor.error());
  if (role == RailRole::kListen && rdma_listen(anchor->id.get(), kBacklog) != 0) {
    return system_failure("listen for RDMA connections at", address.text());
  }
  const int async_fd = anchor->context()->async_fd;
  ::fcntl(async_fd, F_SETFL, ::fcntl(async_fd, F_GETFL) | O_NONBLOCK);
  return std::unique_ptr<VerbsRail>(
      new VerbsRail(port, address, std::move(*anchor), std::move(*stop)));
}

VerbsRail::VerbsRail(const RdmaPort& port, RailAddress address, Anchor anchor, WakeEvent stop)
    : device_(port.device),
      address_(bound_address(address, anchor)),
      stop_(std::move(stop)),
      anchor_(std::make_shared<Anchor>(std::move(anchor))) {
  limits_.reads_served =
      static_cast<uint8_t>(std::clamp(port.reads_served_max, 1u, kReadsAtOnceMax));
  limits_.reads_started =
      static_cast<uint8_t>(std::clamp(port.reads_started_max, 1u, kReadsAtOnceMax));
  limits_.reads.works_max = ReadWindow::kWorksMax;
  limits_.reads.pieces_max = std::clamp<uint32_t>(port.read_pieces_max, 1, Landing::kPiecesMax);
  limits_.reads.read_bytes_max = std::max(port.message_max_bytes, uint32_t{kPageSizeBytes});
}

void VerbsRail::start(RailEvents events) {
  events_ = std::move(events);
  thread_ = std::thread([this] { run(); });
}

VerbsRail::~VerbsRail() {
  stop_.signal();
  if (thread_.joinable()) thread_.join();
}

Result<std::shared_ptr<Domain>> VerbsRail::create_domain() {
  std::shared_ptr<Anchor> anchor;
  {
    MutexLock lock(mutex_);
    anchor = anchor_;
  }
  if (!anchor) return failure(ENODEV, "RDMA device " + device_ + " was removed");
  return VerbsDomain::create(std::move(anchor), limits_, device_);
}

Result<std::unique_ptr<ReadQueue>> VerbsRail::connect(const std::shared_ptr<Domain>& domain,
                                                      const ConnectOptions& options,
                                                      const WakeEvent& stop) {
  return static_cast<VerbsDomain&>(*domain).connect(address_, options, stop);
}

// ---- Events ------------------------------------------------------------------------------------

void VerbsRail::run() {
  std::shared_ptr<Anchor> anchor;
  {
    MutexLock lock(mutex_);
    anchor = anchor_;
  }
  std::string lost;
  while (lost.empty()) {
    pollfd waits[] = {{stop_.fd(), POLLIN, 0},
                      {anchor->channel->fd, POLLIN, 0},
                      {anchor->context()->async_fd, POLLIN, 0}};
    if (::poll(waits, 3, -1) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) return;
    if (waits[1].revents != 0) lost = handle_connection_events(*anchor);
    if (waits[2].revents != 0 && lost.empty()) lost = handle_device_events(*anchor);
  }
  {
    MutexLock lock(mutex_);
    anchor_ = nullptr;
  }
  if (events_.lost) events_.lost(lost);
  // Closes the device when all objects made from the rail are destroyed.
  pollfd stop{stop_.fd(), POLLIN, 0};
  while (anchor.use_count() > 1 && ::poll(&stop, 1, kReleaseCheckIntervalMs) == 0) continue;
  if (anchor.use_count() == 1) close_device(*anchor->context());
}

std::string VerbsRail::handle_connection_events(Anchor& anchor) {
  while (auto event = next_event(*anchor.channel)) {
    const rdma_cm_event_type type = event->event;
    const rdma_cm_id* const id = event->id;
    switch (type) {
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        connect_request(std::move(event));
        break;
      case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return "the device is being removed";
      case RDMA_CM_EVENT_DISCONNECTED:
      case RDMA_CM_EVENT_CONNECT_ERROR:
      case RDMA_CM_EVENT_UNREACHABLE:
      case RDMA_CM_EVENT_REJECTED: {
        event = nullptr;  // acknowledges the event; otherwise destroying the identifier would block
        const auto found = admitted_.find(id);
        if (found == admitted_.end()) break;
        if (auto domain = found->second.lock()) domain->drop(id);
        admitted_.erase(found);
        break;
      }
      default:  // ESTABLISHED, TIMEWAIT_EXIT, ADDR_CHANGE
        break;
    }
  }
  return "";
}

void VerbsRail::connect_request(VerbsPointer<rdma_cm_event> event) {
  VerbsPointer<rdma_cm_id> id(event->id);
  const rdma_conn_param wanted = event->param.conn;
  const auto* data = static_cast<const std::byte*>(wanted.private_data);
  const std::vector<std::byte> hello(data, data + wanted.private_data_len);
  event = nullptr;
  const RailAddress peer = rail_address(rdma_get_peer_addr(id.get()));
  auto admission = events_.admit(peer, hello);
  if (!admission) {
    spdlog::warn("refused the RDMA connection from {}: {}", peer.text(), admission.error().message);
    return reject(std::move(id), admission.error().message);
  }
  auto domain = std::static_pointer_cast<VerbsDomain>(admission->domain);
  std::erase_if(admitted_, [](const auto& entry) { return entry.second.expired(); });
  admitted_[id.get()] = domain;
  if (Status accepted = domain->accept(std::move(id), admission->stream, wanted); !accepted) {
    spdlog::warn("cannot accept the RDMA connection from {}: {}", peer.text(),
                 accepted.error().message);
  }
}

std::string VerbsRail::handle_device_events(Anchor& anchor) {
  ibv_async_event event{};
  std::string lost;
  while (lost.empty() && ibv_get_async_event(anchor.context(), &event) == 0) {
    const std::string what = ibv_event_type_str(event.event_type);
    if (event.event_type == IBV_EVENT_DEVICE_FATAL) {
      lost = what;
    } else if (event.event_type == IBV_EVENT_PORT_ACTIVE ||
               event.event_type == IBV_EVENT_PORT_ERR ||
               event.event_type == IBV_EVENT_QP_ACCESS_ERR ||
               event.event_type == IBV_EVENT_QP_REQ_ERR || event.event_type == IBV_EVENT_QP_FATAL) {
      spdlog::warn("RDMA device {}: {}", device_, what);
    }
    ibv_ack_async_event(&event);
  }
  return lost;
}

}  // namespace ppmr
