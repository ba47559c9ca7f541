// The daemon's end of a page reader.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// Passes the memfd of the pool to a page reader, over the first of its sockets.
Status lend_pool(const UniqueFd& socket, int pool);

// Threads: one.
class RemoteMemory {
 public:
  // read() returns an error when the reader has not replied within `patience`, or when `give_up`
  // returns true. read() calls `give_up` every 100 ms.
  RemoteMemory(UniqueFd socket, std::span<const std::byte> pool,
               std::optional<std::chrono::milliseconds> patience, std::function<bool()> give_up);

  // Fills `slot`, a part of the pool, with the bytes at `offset` in the memory file. Errors: those
  // of the page reader; EPIPE if the page reader has ended; ETIMEDOUT; ECANCELED.
  Status read(uint64_t offset, std::span<std::byte> slot);

  // If the reader has not replied to the last read(), it may still fill that slot. In that case
  // returns the socket, so that the caller can wait for the reply or for the reader's end;
  // otherwise returns an empty descriptor. Do not use this object afterwards.
  UniqueFd take_unanswered();

 private:
  Status await_reply();
  std::chrono::nanoseconds used_since_last();

  UniqueFd socket_;
  std::chrono::nanoseconds used_{0};  // processor time of this process at the last request
  bool is_unanswered_ = false;
  const std::byte* const pool_;
  const std::optional<std::chrono::milliseconds> patience_;
  const std::function<bool()> give_up_;
};

}  // namespace ppmr
