#include "verbs_library/move/check.h"

#include <algorithm>
#include <cerrno>

#include "jobs/rdma_release.h"
#include "verbs_library/move/connections.h"
#include "verbs_library/move/datagrams.h"
#include "verbs_library/move/directory.h"
#include "verbs_library/move/settings.h"
#include "verbs_library/protocol/needs.h"
#include "verbs_library/shadow/creation.h"

namespace ppmr::verbs {
namespace {

constexpr std::chrono::milliseconds kPatience{1000};  // ppmr waits a little longer for the answer
constexpr size_t kHindrancesMax = 8;                  // the answer leaves out all further ones

std::string name_of(const EndId& end, const char* kind) {
  return address_of(end.gid) + ", " + kind + " " + std::to_string(end.qpn);
}

const char* link_layer_of(const Context& context, uint32_t port) {
  ibv_port_attr attributes = {};
  if (!context.real ||
      real().ibv_query_port(context.real, static_cast<uint8_t>(port),
                            reinterpret_cast<_compat_ibv_port_attr*>(&attributes)) != 0)
    return "";
  return attributes.link_layer == IBV_LINK_LAYER_ETHERNET     ? "Ethernet"
         : attributes.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand"
                                                              : "";
}

void add_queue_pair(const Qp& qp, DeviceNeeds& needs) {
  const ibv_qp_cap& cap = qp.init.cap;
  needs.requests = std::max({needs.requests, cap.max_send_wr, cap.max_recv_wr});
  needs.pieces = std::max({needs.pieces, cap.max_send_sge, cap.max_recv_sge});
  needs.inline_bytes = std::max(needs.inline_bytes, cap.max_inline_data);
  if ((qp.attributes_set & IBV_QP_PORT) != 0) needs.port = qp.attributes.port_num;
  if ((qp.attributes_set & IBV_QP_PATH_MTU) != 0 && qp.attributes.path_mtu >= IBV_MTU_256)
    needs.mtu_bytes = std::max(needs.mtu_bytes, 128u << qp.attributes.path_mtu);
  if (qp.shown_gid) needs.gid_kinds.insert(gid_kind(*qp.shown_gid));
}

// Returns what one device must be able to make, so that it can make all objects of the context.
DeviceNeeds needs_of(const Context& context) {
  DeviceNeeds needs;
  needs.device = context.origin->name;
  needs.queue_pairs = static_cast<uint32_t>(context.queue_pairs.size());
  needs.completion_queues = static_cast<uint32_t>(context.completion_queues.size());
  needs.shared_queues = static_cast<uint32_t>(context.shared_queues.size());
  needs.regions = static_cast<uint32_t>(context.regions.size());
  needs.domains = static_cast<uint32_t>(context.domains.size());
  for (const Qp* qp : context.queue_pairs) add_queue_pair(*qp, needs);
  for (const Cq* cq : context.completion_queues)
    needs.completions = std::max(needs.completions, static_cast<uint32_t>(cq->wanted_cqe));
  for (const Srq* srq : context.shared_queues)
    needs.shared_requests = std::max(needs.shared_requests, srq->init.attr.max_wr);
  for (const Ah* path : context.paths) {
    if (path->shown_gid) needs.gid_kinds.insert(gid_kind(*path->shown_gid));
  }
  needs.link_layer = link_layer_of(context, needs.port);
  return needs;
}

}  // namespace

std::string why_it_stays(Qp& qp) {
  Connection& connection = *qp.connection;
  if (qp.owner->regions.size() > kKeysMax) return "the process has too many memory regions";
  if (connection.problem) return connection.problem;
  if (!connection.peer_file) connection.peer_file = read_end_file(connection.link.peer());
  if (!connection.peer_file && connection.link.phase() != Link::Phase::kFailed)
    return "a peer has no movable verbs, or another directory (" +
           name_of(connection.link.peer(), "queue pair") + ")";
  return "";
}

Check::Check(Time now, bool is_here) : limit_(now + std::min(kPatience, settings().drain_limit)) {
  // From now on, a live move may track writes. Its first round copies all memory, so it includes
  // what devices have written before.
  world().is_tracked = true;
  world().unshown_error = 0;
  if (!is_here) return;
  for (Context* context : world().contexts) {
    for (Qp* qp : context->queue_pairs) look_at(*qp);
  }
}

void Check::look_at(Qp& qp) {
  if (qp.datagrams) {
    if (std::string why = why_datagrams_stay(qp); !why.empty()) hindrances_.push_back(why);
    for (const auto& [key, watcher] : qp.datagrams->watchers) {
      const auto file = read_end_file(key.sender);
      if (file) ask(*file, key.known_as, key.sender, name_of(key.sender, "UD queue pair"));
    }
    return;
  }
  if (!qp.connection || is_broken(qp)) return;
  if (std::string why = why_it_stays(qp); !why.empty()) hindrances_.push_back(why);
  const Link& link = qp.connection->link;
  if (qp.connection->peer_file && link.phase() != Link::Phase::kFailed)
    ask(*qp.connection->peer_file, link.mine(), link.peer(), name_of(link.peer(), "queue pair"));
}

void Check::ask(const EndFile& file, const EndId& mine, const EndId& peer,
                const std::string& name) {
  // A peer whose own process moves does not answer now, but it comes back.
  if (file.moves) return;
  const auto is_same = [&](const Question& one) { return one.to == file.control; };
  if (std::any_of(questions_.begin(), questions_.end(), is_same)) return;
  Message request;
  request.kind = static_cast<uint8_t>(RequestKind::kKeys);
  request.from = mine;
  request.to = peer;
  request.secret = file.secret;
  Question& question = questions_.emplace_back();
  question.to = file.control;
  question.peer = name;
  question.call.start(file.control, request);
}

bool Check::advance(Time now) {
  bool all_are_done = true;
  for (Question& question : questions_) {
    if (question.is_done) continue;
    Call& call = question.call;
    if (call.state() == Call::State::kRuns) call.advance();
    // A process that refuses the connection has ended or moves. Neither stops a release.
    const bool has_ended = call.state() == Call::State::kFailed &&
                           (call.error() == ECONNREFUSED || call.error() == ECONNRESET);
    question.is_done = call.state() == Call::State::kAnswered || has_ended;
    const bool is_lost = call.state() == Call::State::kFailed || now >= limit_;
    if (!question.is_done && is_lost) {
      hindrances_.push_back("a peer does not answer (" + question.peer + ")");
      question.is_done = true;
    }
    if (question.is_done) call.end();
    all_are_done &= question.is_done;
  }
  return all_are_done;
}

std::string Check::answer() const {
  std::string text = PPMR_RDMA_CHECKED "\n";
  for (size_t i = 0; i < std::min(hindrances_.size(), kHindrancesMax); ++i)
    text += "hindrance " + hindrances_[i] + "\n";
  if (can_show_writes()) text += "shows-writes\n";
  std::vector<DeviceNeeds> all;
  for (const Context* context : world().contexts) {
    const DeviceNeeds needs = needs_of(*context);
    const auto same = std::find_if(
        all.begin(), all.end(), [&](const DeviceNeeds& one) { return one.device == needs.device; });
    if (same == all.end()) {
      all.push_back(needs);
    } else {
      add(needs, *same);
    }
  }
  for (const DeviceNeeds& needs : all) {
    const std::string line = format(needs);
    if (text.size() + line.size() < PPMR_RDMA_ANSWER_MAX) text += line;
  }
  return text;
}

}  // namespace ppmr::verbs
