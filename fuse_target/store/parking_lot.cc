#include "fuse_target/store/parking_lot.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <utility>

namespace ppmr {
namespace {

// A signal comes before its effect can be seen (SIGKILL may follow a harmless one): look again.
constexpr std::chrono::milliseconds kLookInterval{100};

}  // namespace

ParkingLot::ParkingLot(std::function<bool(pid_t)> is_dying)
    : is_dying_(std::move(is_dying)), watcher_([this] { watch_interrupted(); }) {}

ParkingLot::~ParkingLot() {
  {
    std::lock_guard lock(interrupts_mutex_);
    stopping_ = true;
  }
  interrupt_arrived_.notify_all();
  watcher_.join();
  assert(entries_.empty() && "the lot is closed before it is destroyed");
}

void ParkingLot::park(ParkedRequest request) {
  Entries::iterator entry;
  {
    std::lock_guard lock(mutex_);
    entry = entries_.emplace(entries_.end());
    entry->request = std::move(request);
    entry->trying = true;
    ++parked_;
  }
  try_entry(entry);
}

// The entry is ours (`trying`).
void ParkingLot::try_entry(Entries::iterator entry) {
  for (;;) {
    const bool answered = entry->request.retry();
    std::unique_lock lock(mutex_);
    if (!answered && !closed_ && std::exchange(entry->try_again, false)) continue;
    if (!answered && !closed_) {
      entry->trying = false;
      return;
    }
    lock.unlock();
    leave(entry, answered ? 0 : ENOTCONN);
    return;
  }
}

// Takes the entry away, refused unless `errno_value` is 0; what its closures hold is let go without
// a lock.
void ParkingLot::leave(Entries::iterator entry, int errno_value) {
  if (errno_value != 0) entry->request.refuse(errno_value);
  Entries gone;
  std::lock_guard lock(mutex_);
  gone.splice(gone.begin(), entries_, entry);
  --parked_;
  if (entries_.empty()) emptied_.notify_all();
}

std::vector<ParkingLot::Entries::iterator> ParkingLot::claim_locked(
    const std::function<bool(Entry&)>& wanted) {
  std::vector<Entries::iterator> claimed;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!wanted(*entry)) continue;
    if (entry->trying) {
      entry->try_again = true;
    } else {
      entry->trying = true;
      claimed.push_back(entry);
    }
  }
  return claimed;
}

void ParkingLot::changed(const void* subject) {
  if (parked_ == 0) return;
  std::vector<Entries::iterator> claimed;
  {
    std::lock_guard lock(mutex_);
    claimed = claim_locked([&](Entry& entry) {
      return entry.request.subject == subject || entry.request.checkpoint == subject;
    });
  }
  for (auto& entry : claimed) try_entry(entry);
}

void ParkingLot::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  const auto claimed = claim_locked([](Entry&) { return true; });
  lock.unlock();
  for (auto& entry : claimed) leave(entry, ENOTCONN);
  lock.lock();
  emptied_.wait(lock, [this] { return entries_.empty(); });
}

// ---- Interrupted callers -----------------------------------------------------------------------

void ParkingLot::interrupted(const void* id) {
  std::lock_guard lock(interrupts_mutex_);
  interrupts_.push_back(id);
  interrupt_arrived_.notify_all();
}

// The kernel tells of the first signal only, so an interrupted caller is looked at until its
// request is answered. A late word about a request that is gone marks at worst another one, which
// is then looked at in vain.
void ParkingLot::watch_interrupted() {
  bool some_interrupted = false;
  std::unique_lock interrupts_lock(interrupts_mutex_);
  while (!stopping_) {
    if (some_interrupted) {
      interrupt_arrived_.wait_for(interrupts_lock, kLookInterval, [this] { return stopping_; });
    } else {
      interrupt_arrived_.wait(interrupts_lock,
                              [this] { return stopping_ || !interrupts_.empty(); });
    }
    const std::vector<const void*> ids = std::exchange(interrupts_, {});
    interrupts_lock.unlock();
    std::vector<Entries::iterator> claimed;
    {
      std::lock_guard lock(mutex_);
      some_interrupted = false;
      claimed = claim_locked([&](Entry& entry) {
        const bool now = std::find(ids.begin(), ids.end(), entry.request.id) != ids.end();
        entry.interrupted = entry.interrupted || now;
        some_interrupted = some_interrupted || entry.interrupted;
        return entry.interrupted;
      });
    }
    for (auto& entry : claimed) {
      if (is_dying_(entry->request.caller)) {
        leave(entry, EINTR);
      } else {
        try_entry(entry);
      }
    }
    interrupts_lock.lock();
  }
}

}  // namespace ppmr
