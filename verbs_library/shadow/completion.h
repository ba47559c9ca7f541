// Completion queues: what programs poll, and what the helper thread takes from the device while a
// connection is drained.
#pragma once

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operations poll_cq and req_notify_cq of a shadow context. Threads: any.
int poll_completions(ibv_cq* cq, int count, ibv_wc* completions);
int request_event(ibv_cq* cq, int solicited_only);

// Takes all completions of the device; programs poll them later. Returns how many there were.
int absorb_completions(Cq& cq);

// Adds a completion that the device did not make.
void keep_completion(Cq& cq, const ibv_wc& completion);

// No completion of the device may refer to this ring any more once those in the queue are polled.
void retire(Cq& cq, std::shared_ptr<Ring> ring);

// Completions of a queue pair with a shared receive queue name it by its real number: adds and
// removes one. Before it is removed, all completions are absorbed.
void add_receiver(Cq& cq, uint32_t real_qpn, std::shared_ptr<ReceiveRing> ring);
void remove_receiver(Cq& cq, uint32_t real_qpn);

// Fetches the events of the device, so that none is lost with the real channel. The caller holds
// World::control.
void absorb_events(Channel& channel);

// The functions of an ibv_cq_ex.
void set_extended_functions(Cq& cq);

}  // namespace ppmr::verbs
