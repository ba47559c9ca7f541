#include "verbs_library/shadow/completion.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ppmr::verbs {
namespace {

void raise_event(Cq& cq) {
  if (!cq.events || cq.armed.exchange(0) == 0) return;
  Channel& channel = *cq.events;
  const std::lock_guard guard(channel.lock);
  channel.raised.push_back(&cq);
  eventfd_write(channel.raised_fd, 1);
}

// Polls the device. The caller holds cq.lock. Returns how many completions the program may see.
int poll_device(Cq& cq, int count, ibv_wc* completions) {
  const int polled = cq.real->context->ops.poll_cq(cq.real, count, completions);
  if (polled <= 0) {
    if (polled == 0 && !cq.retired.empty()) [[unlikely]]
      cq.retired.clear();
    return polled;
  }
  int shown = 0;
  for (int i = 0; i < polled; ++i) {
    if (!translate(completions[i], cq.receivers)) [[unlikely]]
      continue;
    if (shown != i) completions[shown] = completions[i];
    ++shown;
  }
  return shown;
}

}  // namespace

int poll_completions(ibv_cq* cq_seen, int count, ibv_wc* completions) {
  Cq& cq = shadow_of(cq_seen);
  const std::lock_guard guard(cq.lock);
  int polled = 0;
  if (!cq.kept.empty()) [[unlikely]] {
    while (polled < count && !cq.kept.empty()) {
      completions[polled++] = cq.kept.front();
      cq.kept.pop_front();
    }
  }
  if (polled == count || !cq.real) return polled;
  const int more = poll_device(cq, count - polled, completions + polled);
  return more < 0 && polled == 0 ? more : polled + std::max(more, 0);
}

int request_event(ibv_cq* cq_seen, int solicited_only) {
  Cq& cq = shadow_of(cq_seen);
  const std::lock_guard guard(cq.lock);
  cq.armed = solicited_only ? 2 : 1;
  if (!cq.kept.empty()) {
    raise_event(cq);
    return 0;
  }
  return cq.real ? cq.real->context->ops.req_notify_cq(cq.real, solicited_only) : 0;
}

int absorb_completions(Cq& cq) {
  constexpr int kBatch = 16;
  const std::lock_guard guard(cq.lock);
  int absorbed = 0;
  while (cq.real) {
    ibv_wc completions[kBatch];
    const int polled = cq.real->context->ops.poll_cq(cq.real, kBatch, completions);
    if (polled <= 0) break;
    for (int i = 0; i < polled; ++i) {
      if (!translate(completions[i], cq.receivers)) continue;
      cq.kept.push_back(completions[i]);
      ++absorbed;
    }
  }
  if (absorbed > 0) raise_event(cq);
  return absorbed;
}

void keep_completion(Cq& cq, const ibv_wc& completion) {
  const std::lock_guard guard(cq.lock);
  cq.kept.push_back(completion);
  raise_event(cq);
}

void retire(Cq& cq, std::shared_ptr<Ring> ring) {
  const std::lock_guard guard(cq.lock);
  cq.retired.push_back(std::move(ring));
}

void add_receiver(Cq& cq, uint32_t real_qpn, std::shared_ptr<ReceiveRing> ring) {
  const std::lock_guard guard(cq.lock);
  cq.receivers[real_qpn] = std::move(ring);
}

void remove_receiver(Cq& cq, uint32_t real_qpn) {
  absorb_completions(cq);
  const std::lock_guard guard(cq.lock);
  cq.receivers.erase(real_qpn);
}

void absorb_events(Channel& channel) {
  const std::lock_guard guard(channel.lock);
  ibv_cq* real_cq = nullptr;
  void* context = nullptr;
  // The real channel does not block.
  while (channel.real && real().ibv_get_cq_event(channel.real, &real_cq, &context) == 0) {
    real().ibv_ack_cq_events(real_cq, 1);
    Cq& cq = *static_cast<Cq*>(context);
    cq.armed = 0;
    channel.raised.push_back(&cq);
    eventfd_write(channel.raised_fd, 1);
  }
}

}  // namespace ppmr::verbs
