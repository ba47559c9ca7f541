// The objects that programs see. Each stands for a real object, which the library destroys for a
// move and makes again afterwards. The object that the program sees, its address and its numbers
// stay.
//
// Locks, in the order in which a thread takes them:
//   World::control        guards all objects and lists; every call that is not on the data path
//                         holds it, and the helper thread holds it while the process is away
//   Qp::send_lock, Qp::receive_lock, Srq::lock     guard the queues
//   Cq::lock              guards the completion queue
//   Channel::lock         guards events that the program has not fetched
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "verbs_library/protocol/choices.h"
#include "verbs_library/protocol/key_table.h"
#include "verbs_library/protocol/link.h"
#include "verbs_library/protocol/message.h"
#include "verbs_library/shadow/fast_lock.h"
#include "verbs_library/shadow/real_verbs.h"
#include "verbs_library/shadow/rings.h"

namespace ppmr::verbs {

struct Connection;  // verbs_library/move/connection.h
struct Datagrams;   // verbs_library/move/datagrams.h
struct Builder;     // verbs_library/shadow/builder.h
struct Context;

// A device. The process has one object per device, which is never freed, because programs may keep
// the pointer.
struct Device : ibv_device {
  // Libraries of vendors read their own fields behind an ibv_device, to find out whether the device
  // is theirs. Here they find zeros.
  char zeros[2048] = {};
  std::atomic<ibv_device*> real{nullptr};  // from the newest list, which is never freed
};

struct Pd : ibv_pd {
  Context* owner = nullptr;
  ibv_pd* real = nullptr;
};

struct Mr : ibv_mr {
  Context* owner = nullptr;
  Pd* domain = nullptr;
  ibv_mr* real = nullptr;
  unsigned int access = 0;
  uint64_t iova = 0;
};

struct Cq;

struct Channel : ibv_comp_channel {
  Context* owner = nullptr;
  std::mutex lock;
  ibv_comp_channel* real = nullptr;  // guarded by lock
  std::deque<Cq*> raised;            // guarded by lock: events that the library has raised
  int raised_fd = -1;                // eventfd: readable while `raised` has an element
};

struct Cq : ibv_cq_ex {
  ibv_cq* as_cq() { return ibv_cq_ex_to_cq(this); }

  Context* owner = nullptr;
  Channel* events = nullptr;
  int wanted_cqe = 0;
  int vector = 0;
  bool is_extended = false;
  uint32_t extended_flags = 0;

  FastLock lock;
  ibv_cq* real = nullptr;                      // guarded by lock
  std::deque<ibv_wc> kept;                     // guarded by lock: not polled by the program yet
  std::vector<std::shared_ptr<Ring>> retired;  // guarded by lock
  Receivers receivers;                         // guarded by lock
  std::atomic<int> armed = 0;  // 0: no, 1: for every completion, 2: for solicited ones

  // State of the extended interface: one completion between start_poll and end_poll.
  FastLock extended_lock;
  ibv_wc current = {};

  std::mutex acknowledge_lock;
  std::condition_variable acknowledged;
  uint64_t events_fetched = 0, events_acknowledged = 0;  // guarded by acknowledge_lock
};

struct Srq : ibv_srq {
  Context* owner = nullptr;
  Pd* domain = nullptr;
  ibv_srq_init_attr init = {};  // with the sizes that the device granted
  uint32_t armed_limit = 0;     // guarded by control: the limit of an event that is still to come

  FastLock lock;
  ibv_srq* real = nullptr;               // guarded by lock, and changes with control held
  bool keeps_receives = false;           // guarded by lock: does not post them to the device
  uint64_t posted = 0;                   // guarded by lock
  const KeyTable* local_keys = nullptr;  // guarded by lock
  std::vector<ibv_sge> room;             // guarded by lock: room for translated requests
  std::unique_ptr<SharedReceives> receives;
};

// An address handle: a path to one GID. The program may use it for any queue pair number behind the
// GID.
struct Ah : ibv_ah {
  Context* owner = nullptr;
  Pd* domain = nullptr;
  ibv_ah_attr attributes = {};        // as the program gave them
  std::optional<GidEntry> shown_gid;  // the GID of this end as the program knows it
  // Guarded by control: the real address handles. Key: the real GID to which they lead.
  std::map<Gid, ibv_ah*> real;
};

// A destination as the program names it: a queue pair number behind an address handle. Route is the
// real destination.
struct RouteKey {
  const Ah* path = nullptr;
  uint32_t qpn = 0;

  auto operator<=>(const RouteKey&) const = default;
};
struct Route {
  ibv_ah* path = nullptr;
  uint32_t qpn = 0;
};

// A send that the library holds back.
struct HeldSend {
  ibv_send_wr request = {};
  std::vector<ibv_sge> pieces;
  std::vector<char> inline_bytes;
};

// A name of a queue pair. It has one for each GID that its device had when the program made it.
struct EndName {
  EndId end;
  GidEntry gid;
  uint32_t port = 1;
};

struct Qp : ibv_qp_ex {
  Qp();
  ~Qp();
  ibv_qp* as_qp() { return &qp_base; }

  Context* owner = nullptr;
  Pd* domain = nullptr;
  Cq* send_cq = nullptr;
  Cq* receive_cq = nullptr;
  ibv_qp_init_attr init = {};  // with the sizes that the device granted
  ibv_qp* real = nullptr;      // changes with control and both queues' locks held
  Srq* shared_receives() const { return static_cast<Srq*>(init.srq); }
  bool sends_datagrams() const { return init.qp_type == IBV_QPT_UD; }

  // The attributes that the program has set. The library sets them again after a move. Guarded by
  // control.
  ibv_qp_attr attributes = {};
  int attributes_set = 0;
  std::optional<GidEntry> shown_gid;  // the GID of this end when the program connected it
  Secret secret = {};
  std::vector<EndName> names;              // the names under which the directory has it
  std::unique_ptr<Connection> connection;  // of a connected queue pair
  std::unique_ptr<Datagrams> datagrams;    // of a UD queue pair
  std::unique_ptr<Builder> builder;        // for ibv_wr_*

  FastLock send_lock;
  bool is_gated = false;      // guarded by send_lock: sends are held back
  bool wakes_helper = false;  // guarded by send_lock: the helper waits for a held send
  bool has_ended = false;     // guarded by send_lock: has no device, and all requests fail
  std::deque<HeldSend> held;  // guarded by send_lock
  std::shared_ptr<SendRing> sends;
  const KeyTable* local_keys = nullptr;         // guarded by send_lock and receive_lock
  std::unique_ptr<const KeyTable> remote_keys;  // guarded by send_lock
  bool translates = false;           // guarded by send_lock: one of the tables is not empty
  std::vector<ibv_sge> send_pieces;  // guarded by send_lock: room for translated requests
  std::map<RouteKey, Route> routes;  // guarded by send_lock: the known routes of a UD queue pair
  Route last_route;                  // guarded by send_lock: of the last datagram
  RouteKey last_route_key;           // guarded by send_lock

  FastLock receive_lock;
  bool keeps_receives = false;  // guarded by receive_lock: does not post them to the device
  std::shared_ptr<ReceiveRing> receives;
  std::vector<ibv_sge> receive_pieces;  // guarded by receive_lock
};

struct Context : verbs_context {
  ibv_context* as_context() { return &context; }

  ibv_context* real = nullptr;  // guarded by control, like all members below
  Device* origin = nullptr;
  std::vector<Pd*> domains;
  std::vector<Mr*> regions;
  std::vector<Channel*> channels;
  std::vector<Cq*> completion_queues;
  std::vector<Srq*> shared_queues;
  std::vector<Ah*> paths;
  std::vector<Qp*> queue_pairs;
  // The keys of regions whose real key differs from the key that the program knows.
  std::unique_ptr<const KeyTable> local_keys = std::make_unique<KeyTable>();
  std::unique_ptr<const KeyTable> remote_keys = std::make_unique<KeyTable>();
  int device_raised_fd = -1;                  // eventfd: readable while an event below waits
  std::deque<ibv_async_event> device_raised;  // events that the program has not fetched
  bool has_moved = false;                     // real numbers may differ from those of the program
};

// All contexts of the process.
struct World {
  std::mutex control;
  // Guarded by control:
  std::vector<Context*> contexts;
  // Set by a check: from now on a live move may track what the process writes, see show_writes().
  bool is_tracked = false;
  int unshown_error = 0;  // why show_writes() has failed since the check; 0: it has not failed
};
World& world();

// Return whether the object is a shadow. It can be a real object, because other libraries
// (providers, librdmacm) call the exported functions with real objects.
bool is_shadow(const ibv_context* context);
bool is_shadow(const ibv_device* device);

inline Context& shadow_of(ibv_context* context) {
  return *static_cast<Context*>(verbs_get_ctx(context));
}
inline Device& shadow_of(ibv_device* device) { return *static_cast<Device*>(device); }
inline Pd& shadow_of(ibv_pd* pd) { return *static_cast<Pd*>(pd); }
inline Mr& shadow_of(ibv_mr* mr) { return *static_cast<Mr*>(mr); }
inline Srq& shadow_of(ibv_srq* srq) { return *static_cast<Srq*>(srq); }
inline Ah& shadow_of(ibv_ah* ah) { return *static_cast<Ah*>(ah); }
inline Channel& shadow_of(ibv_comp_channel* channel) { return *static_cast<Channel*>(channel); }
inline Cq& shadow_of(ibv_cq* cq) { return *static_cast<Cq*>(reinterpret_cast<ibv_cq_ex*>(cq)); }
inline Qp& shadow_of(ibv_qp* qp) { return *static_cast<Qp*>(reinterpret_cast<ibv_qp_ex*>(qp)); }

}  // namespace ppmr::verbs
