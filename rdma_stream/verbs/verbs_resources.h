// What libibverbs and librdmacm hand out, owned from birth. Private to the fabric.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>
#include <string>

#include "buffer_pool/result.h"
#include "rdma_stream/verbs/verbs.h"

namespace ppmr {

struct VerbsDelete {
  void operator()(rdma_event_channel* channel) const { rdma_destroy_event_channel(channel); }
  void operator()(rdma_cm_id* id) const {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    rdma_destroy_id(id);  // waits until its events are acknowledged
  }
  void operator()(rdma_cm_event* event) const { rdma_ack_cm_event(event); }
  void operator()(ibv_pd* domain) const { ibv_dealloc_pd(domain); }
  void operator()(ibv_mr* region) const { ibv_dereg_mr(region); }
  void operator()(ibv_cq* queue) const { ibv_destroy_cq(queue); }
  void operator()(ibv_comp_channel* channel) const { ibv_destroy_comp_channel(channel); }
};
template <typename T>
using VerbsPointer = std::unique_ptr<T, VerbsDelete>;

// An identifier bound to one address of a device: while it lives, so does the device's context,
// which is librdmacm's. Destroyed from the last to the first.
struct Anchor {
  VerbsPointer<rdma_event_channel> channel;
  VerbsPointer<rdma_cm_id> id;
  ibv_context* context() const { return id->verbs; }
};

// Either family of socket address. An address that is neither gives all zeros.
struct SocketAddress {
  sockaddr_storage storage{};
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};
SocketAddress socket_address(const RailAddress& address);
RailAddress rail_address(const sockaddr* address);

// Binds to `address`. Errors: ENODEV when it is no RDMA device's; EADDRINUSE.
Result<Anchor> bind_anchor(const RailAddress& address);

// The next event, if there is one.
VerbsPointer<rdma_cm_event> next_event(rdma_event_channel& channel);

// "rxe0": the same name as in /sys/class/infiniband.
std::string device_name(const ibv_context* context);

// Why so many bytes cannot be pinned by this process, and what to do; empty if they can.
std::string memlock_objection(uint64_t bytes);

}  // namespace ppmr
