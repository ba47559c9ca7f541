// The send queue: posting, holding back, draining.
#pragma once

#include <functional>
#include <vector>

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operation post_send of a shadow context. Errors like those of ibv_post_send; ENOMEM if the
// queue, or the room for held sends, is full. Threads: any.
int post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad);

// Holds back the sends from now on.
void gate_sends(Qp& qp);

// Posts what was held back, in order, and then lets sends pass again. Returns false if the device
// did not take all of it: call it again later.
bool open_sends(Qp& qp);

// Makes the device report when all sends are done: posts a marker if the last send has no
// completion. The caller has gated the queue, or does not care.
void mark_end_of_sends(Qp& qp);

// Whether sends are held back.
bool are_sends_gated(Qp& qp);

// Returns the routes that the held sends of a UD queue pair lack, each once. The other two add and
// remove routes.
std::vector<RouteKey> missing_routes(Qp& qp);
void add_route(Qp& qp, const RouteKey& key, const Route& route);
void remove_routes(Qp& qp, const std::function<bool(const RouteKey&)>& is_removed);
// The real address handles behind this path, or behind all, will be destroyed.
void forget_path(Qp& qp, const Ah* path);

// Completes held sends with errors, as if the peer had died. Returns whether there were any.
bool fail_held_sends(Qp& qp);

// What the link wants to know.
Traffic traffic_of(Qp& qp);

// Whether a send is held back. The next one wakes the helper thread.
bool await_held_send(Qp& qp);

}  // namespace ppmr::verbs
