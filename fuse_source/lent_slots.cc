#include "fuse_source/lent_slots.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <system_error>

namespace ppmr {

LentSlots::~LentSlots() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
  }
  if (!thread_.joinable()) return;
  (void)eventfd_write(wake_.get(), 1);
  thread_.join();
}

void LentSlots::keep(SlotLease lease, UniqueFd socket) {
  MutexLock lock(mutex_);
  lent_.push_back({std::move(lease), std::move(socket)});
  if (!thread_.joinable()) {
    wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) throw std::system_error(errno, std::generic_category(), "create an eventfd");
    thread_ = std::thread([this] { watch(); });
  }
  (void)eventfd_write(wake_.get(), 1);
}

// The sockets in `waits` are those at the front of lent_: other threads only append to lent_.
void LentSlots::watch() {
  for (;;) {
    std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
    {
      MutexLock lock(mutex_);
      if (ends_) return;
      for (const Lent& lent : lent_) waits.push_back({lent.socket.get(), POLLIN, 0});
    }
    if (::poll(waits.data(), waits.size(), -1) < 0) continue;  // EINTR
    eventfd_t woken = 0;
    (void)eventfd_read(wake_.get(), &woken);
    MutexLock lock(mutex_);
    for (size_t i = waits.size() - 1; i > 0; --i) {
      if (waits[i].revents != 0) lent_.erase(lent_.begin() + static_cast<ptrdiff_t>(i - 1));
    }
  }
}

}  // namespace ppmr
