// The send queue: posts sends, holds them back, and drains the queue.
#pragma once

#include <functional>
#include <vector>

#include "verbs_library/shadow/shadow.h"

namespace ppmr::verbs {

// The operation post_send of a shadow context. Errors like those of ibv_post_send; ENOMEM if the
// queue, or the room for held sends, is full. Threads: any.
int post_send(ibv_qp* qp, ibv_send_wr* requests, ibv_send_wr** bad);

// Holds back all sends from now on.
void gate_sends(Qp& qp);

// Posts the held sends in order, and then lets sends pass again. Returns false if the device has
// not taken all of them; the caller then calls it again later.
bool open_sends(Qp& qp);

// Makes the device report when all sends are done: posts a marker if the last send has no
// completion of its own. Later sends would need a new marker, so most callers first gate the queue.
void mark_end_of_sends(Qp& qp);

// Returns whether sends are held back.
bool are_sends_gated(Qp& qp);

// Returns the keys of routes that the held sends of a UD queue pair lack, each once. add_route()
// and remove_routes() add and remove routes.
std::vector<RouteKey> missing_routes(Qp& qp);
void add_route(Qp& qp, const RouteKey& key, const Route& route);
void remove_routes(Qp& qp, const std::function<bool(const RouteKey&)>& is_removed);
// Removes the routes through this path, because its real address handles will be destroyed. null:
// all paths.
void forget_path(Qp& qp, const Ah* path);

// Completes held sends with errors, as if the peer had died. Returns whether there were any.
bool fail_held_sends(Qp& qp);

// Returns what the queue pair has sent and received, for its link.
Traffic traffic_of(Qp& qp);

// Returns whether a send is held back. From now on, each held send wakes the helper thread.
bool await_held_send(Qp& qp);

}  // namespace ppmr::verbs
