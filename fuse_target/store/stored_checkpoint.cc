#include "fuse_target/store/stored_checkpoint.h"

namespace ppmr {

std::string to_string(StoredState state) {
  switch (state) {
    case StoredState::kOpen:
      return "open";
    case StoredState::kComplete:
      return "complete";
    case StoredState::kSealed:
      return "sealed";
    case StoredState::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string to_string(KeepState state) {
  switch (state) {
    case KeepState::kNo:
      return "no";
    case KeepState::kWriting:
      return "writing";
    case KeepState::kKept:
      return "kept";
  }
  return "unknown";
}

Error StoredCheckpoint::error() const {
  MutexLock lock(mutex_);
  return error_;
}

bool StoredCheckpoint::advance(StoredState state, Error error) {
  MutexLock lock(mutex_);
  const StoredState present = state_.load();
  if (present == StoredState::kSealed || present == StoredState::kFailed || present == state)
    return false;
  error_ = std::move(error);
  state_.store(state, std::memory_order_release);
  return true;
}

}  // namespace ppmr
