// Completion queues. Programs poll them. While a connection drains, the helper thread takes
// completions from the device, and programs get them later.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operations poll_cq and req_notify_cq of a shadow context. Threads: any.
int poll_completions(ibv_cq* cq, int count, ibv_wc* completions);
int request_event(ibv_cq* cq, int solicited_only);

// Takes all completions from the device. Programs poll them later. Returns their number.
int absorb_completions(Cq& cq);

// Adds a completion that the library makes itself.
void keep_completion(Cq& cq, const ibv_wc& completion);

// Keeps a ring whose queue pair is destroyed, until all completions in the device's queue are
// polled: they may refer to the ring.
void retire(Cq& cq, std::shared_ptr<Ring> ring);

// Add and remove a queue pair with a shared receive queue. Completions name it by its real number.
// remove_receiver() first absorbs all completions.
void add_receiver(Cq& cq, uint32_t real_qpn, std::shared_ptr<ReceiveRing> ring);
void remove_receiver(Cq& cq, uint32_t real_qpn);

// Fetches the events of the device, so that none is lost when the real channel is destroyed. The
// caller holds World::control.
void absorb_events(Channel& channel);

// Sets the functions of an ibv_cq_ex.
void set_extended_functions(Cq& cq);

}  // namespace ppmr::verbs
