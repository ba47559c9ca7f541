#include "rdma_stream/verbs/verbs_rail.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>

#include "buffer_pool/mapped_memory.h"
#include "rdma_stream/verbs/verbs_window.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// What devices and the specification allow are some 16 reads at once on a queue pair; more than
// that would only take the device's memory.
constexpr uint32_t kReadsAtOnceMax = 16;
constexpr int kBacklog = 64;
constexpr int kReleaseIntervalMs = 20;
// Of the private data of a rejection, for people.
constexpr size_t kRejectTextMaxBytes = 100;

// The kernel does not remove a device before everybody has closed it (but for drivers that can do
// without), and librdmacm keeps the context that it once opened: what that has open is exchanged
// for nothing. While an identifier is there, librdmacm does not close it, so the numbers are the
// right ones.
void let_go(const ibv_context& context) {
  const UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!nothing) return;
  ::dup3(nothing.get(), context.cmd_fd, O_CLOEXEC);
  ::dup3(nothing.get(), context.async_fd, O_CLOEXEC);
}

void reject(VerbsPointer<rdma_cm_id> id, const std::string& why) {
  (void)rdma_reject(id.get(), why.data(),
                    static_cast<uint8_t>(std::min(why.size(), kRejectTextMaxBytes)));
}

}  // namespace

Result<std::unique_ptr<VerbsRail>> VerbsRail::open(const RdmaPort& port, const RailAddress& address,
                                                   size_t index,
                                                   std::shared_ptr<const RailEvents> events) {
  auto stop = Bell::create();
  if (!stop) return failure(stop.error());
  auto anchor = bind_anchor(address);
  if (!anchor) return failure(anchor.error());
  if (events->admit && rdma_listen(anchor->id.get(), kBacklog) != 0) {
    return system_failure("listen for RDMA at", address.text());
  }
  const int async_fd = anchor->context()->async_fd;
  ::fcntl(async_fd, F_SETFL, ::fcntl(async_fd, F_GETFL) | O_NONBLOCK);
  std::unique_ptr<VerbsRail> rail(
      new VerbsRail(port, address, index, std::move(events), std::move(*stop)));
  rail->address_.port = ntohs(rdma_get_src_port(anchor->id.get()));
  rail->anchor_ = std::make_shared<Anchor>(std::move(*anchor));
  rail->thread_ = std::thread([self = rail.get()] { self->watch(); });
  return rail;
}

VerbsRail::VerbsRail(const RdmaPort& port, RailAddress address, size_t index,
                     std::shared_ptr<const RailEvents> events, Bell stop)
    : device_(port.device),
      address_(address),
      index_(index),
      events_(std::move(events)),
      stop_(std::move(stop)) {
  limits_.is_iwarp = port.is_iwarp;
  limits_.reads_served =
      static_cast<uint8_t>(std::clamp(port.reads_served_max, 1u, kReadsAtOnceMax));
  limits_.reads_started =
      static_cast<uint8_t>(std::clamp(port.reads_started_max, 1u, kReadsAtOnceMax));
  limits_.reads.works_max = ReadWindow::kWorksMax;
  limits_.reads.pieces_max =
      port.is_iwarp ? 1 : std::clamp<uint32_t>(port.read_pieces_max, 1, Landing::kPiecesMax);
  limits_.reads.read_bytes_max = std::max(port.message_max_bytes, uint32_t{kPageSizeBytes});
}

VerbsRail::~VerbsRail() {
  stop_.ring();
  if (thread_.joinable()) thread_.join();
}

Result<std::shared_ptr<Domain>> VerbsRail::create_domain() {
  std::shared_ptr<Anchor> anchor;
  {
    std::lock_guard lock(mutex_);
    anchor = anchor_;
  }
  if (!anchor) return failure(ENODEV, "RDMA device " + device_ + " was removed");
  return VerbsDomain::create(std::move(anchor), limits_, device_);
}

Result<std::unique_ptr<ReadQueue>> VerbsRail::connect(const std::shared_ptr<Domain>& domain,
                                                      const ConnectOptions& options,
                                                      const Bell& stop) {
  return static_cast<VerbsDomain&>(*domain).connect(address_, options, stop);
}

// ---- What the connection manager and the device say --------------------------------------------

void VerbsRail::watch() {
  std::shared_ptr<Anchor> anchor = anchor_;
  std::string lost;
  while (lost.empty()) {
    pollfd waits[] = {{stop_.fd(), POLLIN, 0},
                      {anchor->channel->fd, POLLIN, 0},
                      {anchor->context()->async_fd, POLLIN, 0}};
    if (::poll(waits, 3, -1) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) return;
    if (waits[1].revents != 0) lost = hear_connections(*anchor);
    if (waits[2].revents != 0 && lost.empty()) lost = hear_device(*anchor);
  }
  {
    std::lock_guard lock(mutex_);
    anchor_ = nullptr;
  }
  if (events_->lost) events_->lost(index_, lost);
  // With all that was made of it gone, nobody but this holds the device.
  pollfd stop{stop_.fd(), POLLIN, 0};
  while (anchor.use_count() > 1 && ::poll(&stop, 1, kReleaseIntervalMs) == 0) continue;
  if (anchor.use_count() == 1) let_go(*anchor->context());
}

std::string VerbsRail::hear_connections(Anchor& anchor) {
  while (auto event = next_event(*anchor.channel)) {
    const rdma_cm_event_type type = event->event;
    const rdma_cm_id* const id = event->id;
    switch (type) {
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        connect_request(std::move(event));
        break;
      case RDMA_CM_EVENT_DEVICE_REMOVAL:
        return "it is being removed";
      case RDMA_CM_EVENT_DISCONNECTED:
      case RDMA_CM_EVENT_CONNECT_ERROR:
      case RDMA_CM_EVENT_UNREACHABLE:
      case RDMA_CM_EVENT_REJECTED: {
        event = nullptr;  // acknowledged: the identifier may be destroyed
        const auto found = admitted_.find(id);
        if (found == admitted_.end()) break;
        if (auto domain = found->second.lock()) domain->drop(id);
        admitted_.erase(found);
        break;
      }
      default:  // ESTABLISHED, TIMEWAIT_EXIT, ADDR_CHANGE: nothing to be done
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
  auto admission = events_->admit(index_, hello);
  if (!admission) {
    spdlog::warn("RDMA connection from {} refused: {}", peer.text(), admission.error().message);
    return reject(std::move(id), admission.error().message);
  }
  auto domain = std::static_pointer_cast<VerbsDomain>(admission->domain);
  std::erase_if(admitted_, [](const auto& entry) { return entry.second.expired(); });
  admitted_[id.get()] = domain;
  if (Status accepted = domain->accept(std::move(id), admission->stream, wanted); !accepted) {
    spdlog::warn("RDMA connection from {}: {}", peer.text(), accepted.error().message);
  }
}

std::string VerbsRail::hear_device(Anchor& anchor) {
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
