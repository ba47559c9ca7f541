#include "fuse_target/store/parking_lot.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <new>
#include <utility>

#include "third_party/spdlog.h"

namespace ppmr {
namespace {

// The interval at which the lot checks an interrupted caller until its request is answered. It
// checks repeatedly, because the kernel reports only the first signal that a caller receives during
// a request, and a SIGKILL may follow.
constexpr std::chrono::milliseconds kCheckInterval{100};

// Returns 0 when `retry` did not answer, kAnswered when it did, or the errno with which to refuse
// the request.
constexpr int kAnswered = -1;
int call_retry(const ParkedRequest& request) {
  try {
    return request.retry() ? kAnswered : 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (const std::exception& exception) {
    spdlog::error("a waiting request failed: {}", exception.what());
    return EIO;
  }
}

bool call_is_dying(const std::function<bool(pid_t)>& is_dying, pid_t caller) {
  try {
    return is_dying(caller);
  } catch (const std::exception&) {
    return false;  // checked again after kCheckInterval
  }
}

}  // namespace

ParkingLot::ParkingLot(std::function<bool(pid_t)> is_dying)
    : is_dying_(std::move(is_dying)), watcher_([this] { watch_interrupted(); }) {}

ParkingLot::~ParkingLot() {
  {
    MutexLock lock(interrupts_mutex_);
    stopping_ = true;
  }
  interrupt_arrived_.notify_all();
  watcher_.join();
  MutexLock lock(mutex_);
  assert(entries_.empty() && parked_ == 0 && "the lot is destroyed without close()");
}

void ParkingLot::park(ParkedRequest request) {
  std::list<Entry> added(1);
  Entry& entry = added.front();
  entry.request = std::move(request);
  entry.self = added.begin();
  entry.claimed = true;
  {
    MutexLock lock(mutex_);
    entries_.splice(entries_.end(), added);
    ++parked_;
  }
  if (entry.request.on_parked) entry.request.on_parked();
  retry(entry);
}

// The calling thread has claimed `entry`: no other thread retries or removes it.
void ParkingLot::retry(Entry& entry) {
  for (;;) {
    const int result = call_retry(entry.request);
    if (result != 0) return remove(entry, result == kAnswered ? 0 : result);
    MutexLock lock(mutex_);
    assert(entry.claimed && "two threads retry one request");
    if (closed_) {
      lock.unlock();
      return remove(entry, ENOTCONN);
    }
    if (!std::exchange(entry.retry_again, false)) {
      entry.claimed = false;
      return;
    }
  }
}

// Refuses the request unless `errno_value` is 0. Destroys the request with no lock held.
void ParkingLot::remove(Entry& entry, int errno_value) {
  if (errno_value != 0) entry.request.refuse(errno_value);
  std::list<Entry> removed;
  MutexLock lock(mutex_);
  assert(entry.claimed && parked_ > 0 && "a request was removed twice");
  removed.splice(removed.begin(), entries_, entry.self);
  --parked_;
  if (entries_.empty()) emptied_.notify_all();
}

// Claims the `wanted` entries for the calling thread. Returns the entries as a list that is linked
// through the entries themselves, because a vector would allocate memory.
template <typename Predicate>
ParkingLot::Entry* ParkingLot::claim_locked(Predicate wanted) {
  Entry* first = nullptr;
  Entry** last = &first;
  for (Entry& entry : entries_) {
    if (!wanted(entry)) continue;
    if (entry.claimed) {
      entry.retry_again = true;
      continue;
    }
    entry.claimed = true;
    *last = &entry;
    last = &entry.next_claimed;
  }
  *last = nullptr;
  return first;
}

template <typename Action>
void ParkingLot::for_each_claimed(Entry* first, Action action) {
  while (first != nullptr) {
    Entry& entry = *first;
    first = entry.next_claimed;  // read before the action, because the action may remove the entry
    action(entry);
  }
}

void ParkingLot::changed(const void* subject) {
  if (parked_ == 0) return;
  Entry* claimed = nullptr;
  {
    MutexLock lock(mutex_);
    claimed = claim_locked([&](const Entry& entry) {
      return entry.request.subject == subject || entry.request.checkpoint == subject;
    });
  }
  for_each_claimed(claimed, [this](Entry& entry) { retry(entry); });
}

void ParkingLot::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  Entry* const claimed = claim_locked([](const Entry&) { return true; });
  lock.unlock();
  for_each_claimed(claimed, [this](Entry& entry) { remove(entry, ENOTCONN); });
  lock.lock();
  emptied_.wait(mutex_, [this]() PPMR_REQUIRES(mutex_) { return entries_.empty(); });
}

// ---- Interrupted callers -----------------------------------------------------------------------

void ParkingLot::interrupted(const void* id) {
  MutexLock lock(interrupts_mutex_);
  try {
    interrupts_.push_back(id);
  } catch (const std::bad_alloc&) {
    interrupts_lost_ = true;
  }
  interrupt_arrived_.notify_all();
}

// If an interrupt arrives after its request was answered, it can mark a newer request with the same
// id instead. That is harmless: the lot then makes one unnecessary check of the caller of the newer
// request.
void ParkingLot::watch_interrupted() {
  bool some_interrupted = false;
  MutexLock interrupts_lock(interrupts_mutex_);
  while (!stopping_) {
    const auto arrived = [this]() PPMR_REQUIRES(interrupts_mutex_) {
      return stopping_ || interrupts_lost_ || !interrupts_.empty();
    };
    if (some_interrupted) {
      interrupt_arrived_.wait_for(interrupts_mutex_, kCheckInterval,
                                  [this]() PPMR_REQUIRES(interrupts_mutex_) { return stopping_; });
    } else {
      interrupt_arrived_.wait(interrupts_mutex_, arrived);
    }
    const bool any = std::exchange(interrupts_lost_, false);
    const std::vector<const void*> ids = std::exchange(interrupts_, {});
    interrupts_lock.unlock();
    Entry* claimed = nullptr;
    {
      MutexLock lock(mutex_);
      some_interrupted = false;
      claimed = claim_locked([&](Entry& entry) {
        const bool now = any || std::find(ids.begin(), ids.end(), entry.request.id) != ids.end();
        entry.interrupted = entry.interrupted || now;
        some_interrupted = some_interrupted || entry.interrupted;
        return entry.interrupted;
      });
    }
    for_each_claimed(claimed, [this](Entry& entry) {
      if (call_is_dying(is_dying_, entry.request.caller)) {
        remove(entry, EINTR);
      } else {
        retry(entry);
      }
    });
    interrupts_lock.lock();
  }
}

}  // namespace ppmr
