// The connections (queue pairs) of a protection domain: the source accepts them; the target opens
// them and posts its reads on them.
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "rdma_stream/verbs/verbs_rail.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// InfiniBand's maximum of retries. A queue pair fails when the peer answers none of them.
constexpr uint8_t kRetries = 7;
// The highest finite number of retries; 7 would mean no limit.
constexpr uint8_t kReceiverNotReadyRetries = 6;

// Returns the local ACK timeout (4.096 us * 2^value) with which all retries together take at least
// `time`. When a peer under load answers a read late, the connection must not break before the read
// timeout.
uint8_t ack_timeout(milliseconds time) {
  const auto units = static_cast<uint64_t>(time.count()) * 1000 / (kRetries + 1) / 4;
  return static_cast<uint8_t>(std::clamp<int>(static_cast<int>(std::bit_width(units)), 8, 21));
}

ibv_qp_init_attr queue_pair_attributes(ibv_cq* completions, uint32_t works_max,
                                       uint32_t pieces_max) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions;
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 0;
  attributes.cap.max_send_wr = works_max;
  attributes.cap.max_send_sge = pieces_max;
  // ppmr posts no receives, but some drivers refuse an empty receive queue.
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_recv_sge = 1;
  return attributes;
}

class VerbsReadQueue final : public ReadQueue {
 public:
  // Destroyed from the last member to the first: the queue pair (with its identifier) before its
  // completion queue, and both before the domain.
  struct Parts {
    std::shared_ptr<VerbsDomain> domain;
    VerbsPointer<rdma_event_channel> events;
    VerbsPointer<ibv_comp_channel> channel;
    VerbsPointer<ibv_cq> completions;
    VerbsPointer<rdma_cm_id> id;
    std::string description;
  };
  explicit VerbsReadQueue(Parts parts) : parts_(std::move(parts)) {}
  ~VerbsReadQueue() override {
    rdma_disconnect(parts_.id.get());
    if (notified_ > 0) ibv_ack_cq_events(parts_.completions.get(), notified_);
  }

  const ReadLimits& limits() const override { return parts_.domain->limits().reads; }
  const std::string& description() const override { return parts_.description; }

  Status post(const ReadWork& work) override {
    std::array<ibv_sge, Landing::kPiecesMax> pieces;
    for (size_t i = 0; i < work.pieces.size(); ++i) {
      const auto& piece = work.pieces[i];
      pieces[i] = {reinterpret_cast<uintptr_t>(piece.data), piece.length, piece.key};
    }
    ibv_send_wr request{};
    request.wr_id = work.id;
    request.sg_list = pieces.data();
    request.num_sge = static_cast<int>(work.pieces.size());
    request.opcode = IBV_WR_RDMA_READ;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = work.peer_address;
    request.wr.rdma.rkey = work.peer_key;
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(parts_.id->qp, &request, &bad); error != 0) {
      return system_failure("post an RDMA read on", parts_.description, error);
    }
    return {};
  }

  Result<size_t> poll(std::span<ReadCompletion> completions) override {
    std::array<ibv_wc, 16> done;
    const int room = static_cast<int>(std::min(completions.size(), done.size()));
    const int count = ibv_poll_cq(parts_.completions.get(), room, done.data());
    if (count < 0)
      return failure(EIO, parts_.description + ": polling the completion queue failed");
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = done[static_cast<size_t>(i)];
      // After an error only wr_id, qp_num, status and vendor_err are valid.
      completions[static_cast<size_t>(i)] = {
          completion.wr_id,
          completion.status == IBV_WC_SUCCESS ? nullptr : ibv_wc_status_str(completion.status)};
    }
    return static_cast<size_t>(count);
  }

  Status arm() override {
    if (const int error = ibv_req_notify_cq(parts_.completions.get(), 0); error != 0) {
      return system_failure("request completion events of", parts_.description, error);
    }
    return {};
  }

  Status wait(milliseconds timeout, const WakeEvent& wake) override {
    pollfd waits[] = {
        {parts_.channel->fd, POLLIN, 0}, {parts_.events->fd, POLLIN, 0}, {wake.fd(), POLLIN, 0}};
    if (::poll(waits, 3, static_cast<int>(timeout.count())) < 0 && errno != EINTR) {
      return system_failure("wait on", parts_.description);
    }
    if ((waits[0].revents & POLLIN) != 0) {
      ibv_cq* queue = nullptr;
      void* context = nullptr;
      if (ibv_get_cq_event(parts_.channel.get(), &queue, &context) == 0) ++notified_;
      // Acknowledging takes a lock, so acknowledge many events at once.
      if (notified_ >= 64) {
        ibv_ack_cq_events(parts_.completions.get(), std::exchange(notified_, 0));
      }
    }
    if (waits[1].revents != 0) {
      while (auto event = next_event(*parts_.events)) {
        if (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
          return failure(ENODEV, parts_.description + ": the device is being removed");
        }
        if (event->event == RDMA_CM_EVENT_DISCONNECTED) {
          return failure(ECONNRESET, parts_.description + ": the source disconnected");
        }
      }
    }
    return {};
  }

 private:
  Parts parts_;
  unsigned notified_ = 0;
};

// Waits for the event `wanted`. Errors: another event came, ETIMEDOUT, ECANCELED.
Status await_event(rdma_event_channel& events, rdma_cm_event_type wanted,
                   const std::string& description, Clock::time_point deadline,
                   const WakeEvent& stop) {
  for (;;) {
    while (auto event = next_event(events)) {
      if (event->event == wanted) return {};
      if (event->event == RDMA_CM_EVENT_REJECTED) {
        const auto* text = static_cast<const char*>(event->param.conn.private_data);
        std::string why(text, text == nullptr ? 0 : event->param.conn.private_data_len);
        // The text is padded with zeros.
        why.resize(std::min(why.size(), std::strlen(why.c_str())));
        for (char& c : why) c = c >= ' ' && c <= '~' ? c : '?';
        return failure(ECONNREFUSED, description + ": the source refused the connection" +
                                         (why.empty() ? ": no listener there" : ": " + why));
      }
      const int error = event->status < 0 ? -event->status : event->status;
      return failure(error == 0 ? EIO : error,
                     description + ": " + rdma_event_str(event->event) +
                         (error == 0 ? "" : std::string(": ") + std::strerror(error)));
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left <= milliseconds(0)) {
      return failure(ETIMEDOUT, description + ": no answer to the RDMA connection request");
    }
    pollfd waits[] = {{events.fd, POLLIN, 0}, {stop.fd(), POLLIN, 0}};
    if (::poll(waits, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) {
      return system_failure("wait for", description);
    }
    if (waits[1].revents != 0) return failure(ECANCELED, description + ": cancelled");
  }
}

}  // namespace

// ---- Protection domains ------------------------------------------------------------------------

namespace {

class VerbsRegion final : public Region {
 public:
  VerbsRegion(std::shared_ptr<VerbsDomain> domain, VerbsPointer<ibv_mr> region)
      : domain_(std::move(domain)), region_(std::move(region)) {}
  uint32_t local_key() const override { return region_->lkey; }
  uint32_t peer_key() const override { return region_->rkey; }

 private:
  const std::shared_ptr<VerbsDomain> domain_;
  const VerbsPointer<ibv_mr> region_;
};

}  // namespace

Result<std::shared_ptr<VerbsDomain>> VerbsDomain::create(std::shared_ptr<Anchor> anchor,
                                                         const RailLimits& limits,
                                                         std::string device) {
  std::shared_ptr<VerbsDomain> domain(
      new VerbsDomain(std::move(anchor), limits, std::move(device)));
  domain->domain_.reset(ibv_alloc_pd(domain->context()));
  if (!domain->domain_) return system_failure("create a protection domain on", domain->device_);
  return domain;
}

Result<std::unique_ptr<Region>> VerbsDomain::register_memory(std::span<std::byte> memory,
                                                             Rights rights) {
  const int access = rights == Rights::kLandReads ? IBV_ACCESS_LOCAL_WRITE : IBV_ACCESS_REMOTE_READ;
  VerbsPointer<ibv_mr> region(
      ibv_reg_mr(domain_.get(), memory.data(), memory.size(), static_cast<unsigned>(access)));
  if (!region) {
    const int error = errno;
    std::string message = "register " + std::to_string(memory.size() >> 20) + " MiB with " +
                          device_ + ": " + std::strerror(error);
    if (error == ENOMEM || error == EAGAIN) {
      message += ": the memlock limit or the device's limit of registered memory is reached";
    }
    return failure(error, message);
  }
  return std::make_unique<VerbsRegion>(shared_from_this(), std::move(region));
}

void VerbsDomain::close() {
  std::map<uint32_t, Served> served;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    served.swap(served_);
  }
  for (auto& [stream, connection] : served) rdma_disconnect(connection.id.get());
}

// ---- The source's half -------------------------------------------------------------------------

Status VerbsDomain::accept(VerbsPointer<rdma_cm_id> id, uint32_t stream,
                           const rdma_conn_param& wanted) {
  Served served;
  served.completions.reset(ibv_create_cq(id->verbs, 1, nullptr, nullptr, 0));
  served.id = std::move(id);
  if (!served.completions) return system_failure("create a completion queue on", device_);
  auto attributes = queue_pair_attributes(served.completions.get(), 1, 1);
  if (rdma_create_qp(served.id.get(), domain_.get(), &attributes) != 0) {
    return system_failure("create a queue pair on", device_);
  }
  rdma_conn_param agreed{};
  // If responder_resources were 0, the device would refuse reads.
  agreed.responder_resources =
      std::clamp<uint8_t>(wanted.responder_resources, 1, limits_.reads_served);
  agreed.initiator_depth = std::clamp<uint8_t>(wanted.initiator_depth, 1, limits_.reads_started);
  agreed.rnr_retry_count = kReceiverNotReadyRetries;
  Served replaced;  // destroyed without the lock
  MutexLock lock(mutex_);
  if (closed_) return failure(ECANCELED, "the session has ended");
  if (rdma_accept(served.id.get(), &agreed) != 0) {
    return system_failure("accept an RDMA connection on", device_);
  }
  replaced = std::exchange(served_[stream], std::move(served));
  return {};
}

void VerbsDomain::drop(const rdma_cm_id* id) {
  Served dropped;  // destroyed without the lock
  MutexLock lock(mutex_);
  for (auto entry = served_.begin(); entry != served_.end(); ++entry) {
    if (entry->second.id.get() != id) continue;
    dropped = std::move(entry->second);
    served_.erase(entry);
    return;
  }
}

// ---- The target's half -------------------------------------------------------------------------

Result<std::unique_ptr<ReadQueue>> VerbsDomain::connect(const RailAddress& own,
                                                        const Rail::ConnectOptions& options,
                                                        const WakeEvent& stop) {
  VerbsReadQueue::Parts parts;
  parts.domain = shared_from_this();
  parts.description = device_ + " " + own.ip_text() + " - " + options.peer.text();
  parts.events.reset(rdma_create_event_channel());
  if (!parts.events) return system_failure("create an RDMA event channel for", parts.description);
  const int events_fd = parts.events->fd;
  ::fcntl(events_fd, F_SETFL, ::fcntl(events_fd, F_GETFL) | O_NONBLOCK);
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(parts.events.get(), &id, nullptr, RDMA_PS_TCP) != 0) {
    return system_failure("create an RDMA identifier for", parts.description);
  }
  parts.id.reset(id);
  const auto deadline = Clock::now() + options.timeout;
  const int resolve_ms = static_cast<int>(options.timeout.count());
  RailAddress from = own;
  from.port = 0;
  SocketAddress source = socket_address(from);
  SocketAddress destination = socket_address(options.peer);
  if (rdma_resolve_addr(id, source.get(), destination.get(), resolve_ms) != 0) {
    return system_failure("resolve the address of", parts.description);
  }
  if (Status resolved = await_event(*parts.events, RDMA_CM_EVENT_ADDR_RESOLVED, parts.description,
                                    deadline, stop);
      !resolved) {
    return failure(resolved.error());
  }
  if (id->verbs != context()) {
    return failure(ENETUNREACH,
                   parts.description + ": the route to the source does not use this RDMA device");
  }
  uint8_t timeout = ack_timeout(options.read_timeout);
  (void)rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
  if (rdma_resolve_route(id, resolve_ms) != 0) {
    return system_failure("resolve the route of", parts.description);
  }
  if (Status resolved = await_event(*parts.events, RDMA_CM_EVENT_ROUTE_RESOLVED, parts.description,
                                    deadline, stop);
      !resolved) {
    return failure(resolved.error());
  }
  parts.channel.reset(ibv_create_comp_channel(context()));
  if (!parts.channel) return system_failure("create a completion channel for", parts.description);
  ::fcntl(parts.channel->fd, F_SETFL, ::fcntl(parts.channel->fd, F_GETFL) | O_NONBLOCK);
  const int vectors = std::max(context()->num_comp_vectors, 1);
  parts.completions.reset(ibv_create_cq(context(), static_cast<int>(limits_.reads.works_max + 1),
                                        nullptr, parts.channel.get(),
                                        static_cast<int>(options.stream) % vectors));
  if (!parts.completions) {
    return system_failure("create a completion queue for", parts.description);
  }
  auto attributes = queue_pair_attributes(parts.completions.get(), limits_.reads.works_max,
                                          limits_.reads.pieces_max);
  if (rdma_create_qp(id, domain_.get(), &attributes) != 0) {
    return system_failure("create a queue pair for", parts.description);
  }
  rdma_conn_param wanted{};
  wanted.private_data = options.private_data.data();
  wanted.private_data_len = static_cast<uint8_t>(options.private_data.size());
  wanted.initiator_depth = limits_.reads_started;
  wanted.responder_resources = 1;  // the source never reads, but some devices refuse 0
  wanted.retry_count = kRetries;
  wanted.rnr_retry_count = kReceiverNotReadyRetries;
  if (rdma_connect(id, &wanted) != 0) return system_failure("connect", parts.description);
  if (Status connected =
          await_event(*parts.events, RDMA_CM_EVENT_ESTABLISHED, parts.description, deadline, stop);
      !connected) {
    return failure(connected.error());
  }
  return std::make_unique<VerbsReadQueue>(std::move(parts));
}

}  // namespace ppmr
