// Completion channels and completion queues: makes and destroys them, and waits for events.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "verbs_library/protocol/refusals.h"
#include "verbs_library/shadow/completion.h"
#include "verbs_library/shadow/contexts.h"
#include "verbs_library/shadow/creation.h"

namespace ppmr::verbs {
namespace {

bool blocks(int fd) { return (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0; }

// Returns the completion queue of the next event, which the library has raised or the device has
// sent. Returns null if there is no event.
Cq* fetch_event(Channel& channel) {
  const std::lock_guard guard(channel.lock);
  if (!channel.raised.empty()) {
    Cq* cq = channel.raised.front();
    channel.raised.pop_front();
    eventfd_t count = 0;
    eventfd_read(channel.raised_fd, &count);
    return cq;
  }
  ibv_cq* real_cq = nullptr;
  void* context = nullptr;
  if (!channel.real || real().ibv_get_cq_event(channel.real, &real_cq, &context) != 0)
    return nullptr;
  // Acknowledges the event here, because the program may acknowledge it late or never. A move
  // destroys the real queue, which the real library allows only when all its events are
  // acknowledged.
  real().ibv_ack_cq_events(real_cq, 1);
  auto* cq = static_cast<Cq*>(context);
  cq->armed = 0;
  return cq;
}

Cq* create(ibv_context* seen, int cqe, void* cq_context, ibv_comp_channel* channel, int vector,
           bool is_extended, uint32_t flags) {
  if (!is_extended && cqe <= 0) {
    errno = EINVAL;
    return nullptr;
  }
  const Control control;
  Context& context = shadow_of(seen);
  auto* cq = new Cq();
  cq->context = seen;
  cq->channel = channel;
  cq->ibv_cq_ex::cq_context = cq_context;
  pthread_mutex_init(&cq->mutex, nullptr);
  pthread_cond_init(&cq->cond, nullptr);
  cq->owner = &context;
  cq->events = channel ? &shadow_of(channel) : nullptr;
  cq->wanted_cqe = cqe;
  cq->vector = vector;
  cq->is_extended = is_extended;
  cq->extended_flags = flags;
  if (const int error = make_real_completion_queue(*cq); error != 0) {
    delete cq;
    errno = error;
    return nullptr;
  }
  cq->cqe = cq->real->cqe;
  cq->handle = cq->real->handle;
  set_extended_functions(*cq);
  context.completion_queues.push_back(cq);
  return cq;
}

}  // namespace

int make_real_channel(Channel& channel) {
  if (!channel.owner->real) return ENODEV;
  ibv_comp_channel* made = real().ibv_create_comp_channel(channel.owner->real);
  if (!made) return errno ? errno : EIO;
  fcntl(made->fd, F_SETFL, fcntl(made->fd, F_GETFL) | O_NONBLOCK);
  epoll_event event = {.events = EPOLLIN, .data = {.fd = made->fd}};
  if (epoll_ctl(channel.fd, EPOLL_CTL_ADD, made->fd, &event) != 0) {
    const int error = errno;
    real().ibv_destroy_comp_channel(made);
    return error;
  }
  const std::lock_guard guard(channel.lock);
  channel.real = made;
  return 0;
}

int make_real_completion_queue(Cq& cq) {
  if (!cq.owner->real) return ENODEV;
  // The context of the real queue is our queue, so that an event of the real queue leads to ours.
  ibv_cq* made = real().ibv_create_cq(cq.owner->real, cq.wanted_cqe, &cq,
                                      cq.events ? cq.events->real : nullptr, cq.vector);
  if (!made) return errno ? errno : EIO;
  const std::lock_guard guard(cq.lock);
  cq.real = made;
  if (const int armed = cq.armed; armed != 0) made->context->ops.req_notify_cq(made, armed == 2);
  return 0;
}

ibv_cq_ex* create_extended_completion_queue(ibv_context* context, ibv_cq_init_attr_ex* wanted) {
  if (const char* what = refuse_completion_queue(*wanted)) return refuse(what);
  const uint32_t flags =
      wanted->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? wanted->flags : uint32_t{0};
  return create(context, static_cast<int>(wanted->cqe), wanted->cq_context, wanted->channel,
                static_cast<int>(wanted->comp_vector), true, flags);
}

}  // namespace ppmr::verbs

using namespace ppmr::verbs;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* seen) {
  if (!is_shadow(seen)) return real().ibv_create_comp_channel(seen);
  const Control control;
  Context& context = shadow_of(seen);
  auto* channel = new Channel();
  channel->context = seen;
  channel->owner = &context;
  channel->fd = epoll_create1(EPOLL_CLOEXEC);
  channel->raised_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
  epoll_event event = {.events = EPOLLIN, .data = {.fd = channel->raised_fd}};
  epoll_ctl(channel->fd, EPOLL_CTL_ADD, channel->raised_fd, &event);
  if (const int error = make_real_channel(*channel); error != 0) {
    close(channel->raised_fd);
    close(channel->fd);
    delete channel;
    errno = error;
    return nullptr;
  }
  context.channels.push_back(channel);
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* seen) {
  if (!is_shadow(seen->context)) return real().ibv_destroy_comp_channel(seen);
  const Control control;
  Channel* channel = &shadow_of(seen);
  if (channel->real) {
    if (const int error = real().ibv_destroy_comp_channel(channel->real); error != 0) return error;
  }
  std::erase(channel->owner->channels, channel);
  close(channel->fd);
  close(channel->raised_fd);
  delete channel;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* seen, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int vector) {
  if (!is_shadow(seen)) return real().ibv_create_cq(seen, cqe, cq_context, channel, vector);
  Cq* cq = create(seen, cqe, cq_context, channel, vector, false, 0);
  return cq ? cq->as_cq() : nullptr;
}

int ibv_resize_cq(ibv_cq* seen, int cqe) {
  if (!is_shadow(seen->context)) return real().ibv_resize_cq(seen, cqe);
  const Control control;
  Cq& cq = shadow_of(seen);
  // The lock keeps the program from polling meanwhile. The device moves the completions that are in
  // its queue to the new queue.
  const std::lock_guard guard(cq.lock);
  if (!cq.real) return ENODEV;
  if (const int error = real().ibv_resize_cq(cq.real, cqe); error != 0) return error;
  cq.wanted_cqe = cqe;
  cq.cqe = cq.real->cqe;
  return 0;
}

int ibv_destroy_cq(ibv_cq* seen) {
  if (!is_shadow(seen->context)) return real().ibv_destroy_cq(seen);
  Cq* cq = &shadow_of(seen);
  {
    // Waits like the real library, because other threads of the program may still use the event.
    std::unique_lock guard(cq->acknowledge_lock);
    cq->acknowledged.wait(guard, [&] { return cq->events_acknowledged >= cq->events_fetched; });
  }
  const Control control;
  if (cq->events) absorb_events(*cq->events);
  if (cq->real) {
    if (const int error = real().ibv_destroy_cq(cq->real); error != 0) return error;
  }
  if (cq->events) {
    const std::lock_guard guard(cq->events->lock);
    auto& raised = cq->events->raised;
    for (auto removed = std::erase(raised, cq); removed > 0; --removed) {
      eventfd_t count = 0;
      eventfd_read(cq->events->raised_fd, &count);
    }
  }
  std::erase(cq->owner->completion_queues, cq);
  delete cq;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* seen, ibv_cq** cq_seen, void** cq_context) {
  if (!is_shadow(seen->context)) return real().ibv_get_cq_event(seen, cq_seen, cq_context);
  Channel& channel = shadow_of(seen);
  for (;;) {
    const bool waits = blocks(channel.fd);
    pollfd ready = {.fd = channel.fd, .events = POLLIN, .revents = 0};
    // After a restore, poll(2) fails with EINTR. Programs do not expect that here, because
    // rdma-core calls read(2), which the kernel restarts.
    if (poll(&ready, 1, waits ? -1 : 0) < 0) {
      if (errno == EINTR) continue;
      return -1;
    }
    if (Cq* cq = ready.revents ? fetch_event(channel) : nullptr) {
      const std::lock_guard guard(cq->acknowledge_lock);
      ++cq->events_fetched;
      *cq_seen = cq->as_cq();
      *cq_context = cq->ibv_cq_ex::cq_context;
      return 0;
    }
    if (!waits) {
      errno = EAGAIN;
      return -1;
    }
  }
}

void ibv_ack_cq_events(ibv_cq* seen, unsigned int count) {
  if (!is_shadow(seen->context)) return real().ibv_ack_cq_events(seen, count);
  Cq& cq = shadow_of(seen);
  const std::lock_guard guard(cq.acknowledge_lock);
  cq.events_acknowledged += count;
  cq.acknowledged.notify_all();
}
}
