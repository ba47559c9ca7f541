// Owning pointers to the objects of libibverbs and librdmacm. Private to the fabric.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

struct VerbsDelete {
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
  void operator()(rdma_cm_id* id) const {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    rdma_destroy_id(id);  // blocks until the identifier's events are acknowledged
  }
  void operator()(rdma_cm_event* event) const { rdma_ack_cm_event(event); }
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
  void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
  void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
};
template <typename T>
using VerbsPointer = std::unique_ptr<T, VerbsDelete>;

// An identifier bound to one address of a device. It keeps the device's context, which belongs to
// librdmacm, alive. Its members are destroyed from the last to the first.
struct Anchor {
  VerbsPointer<rdma_event_channel> channel;
  VerbsPointer<rdma_cm_id> id;
  ibv_context* context() const { return id->verbs; }
};

// Converts IPv4 and IPv6 addresses. For any other family rail_address() returns all zeros.
struct SocketAddress {
  sockaddr_storage storage{};
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};
SocketAddress socket_address(const RailAddress& address);
RailAddress rail_address(const sockaddr* address);

// Binds an identifier to `address`. Errors: ENODEV when no RDMA device has the address; EADDRINUSE.
Result<Anchor> bind_anchor(const RailAddress& address);

// Returns the next event, or null if there is none. Never blocks: the channel is non-blocking.
VerbsPointer<rdma_cm_event> next_event(rdma_event_channel& channel);

// Returns the name of the device as in /sys/class/infiniband, for example "rxe0".
std::string device_name(const ibv_context* context);

// Returns why this process cannot pin `bytes`, and how to raise the limit; empty if it can pin
// them.
std::string memlock_objection(uint64_t bytes);

}  // namespace ppmr
