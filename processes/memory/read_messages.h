// The messages between the daemon of a source and a page reader, over a socket pair
// (SOCK_SEQPACKET): a request for bytes of the memory file, then its reply, both of fixed size.
// Before its first request the daemon sends an empty line with the memfd of its pool, on the first
// of the sockets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/message_socket.h"

namespace ppmr {

struct ReadRequest {
  uint64_t offset = 0;       // offset in the memory file
  uint64_t length = 0;       // in bytes
  uint64_t pool_offset = 0;  // place for the bytes in the pool's memory
  // Time of processors that the daemon has used since its last request; more counts as the maximum.
  uint64_t used_ns = 0;
};

using ReadReply = StatusMessage<504>;

// The daemon reads with two threads, and each thread has its own socket.
inline constexpr size_t kPageReaderSockets = 2;

}  // namespace ppmr
