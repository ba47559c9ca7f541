// The messages between the daemon of a source and a page reader, over several socket pairs
// (SOCK_SEQPACKET): a request for bytes of the memory file, then its reply, both of fixed size.
// Before its first request the daemon sends an empty line with the memfd of its pool over the first
// pair.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/message_socket.h"
#include "processes/memory/data_threads.h"

namespace ppmr {

struct ReadRequest {
  uint64_t offset = 0;       // offset in the memory file
  uint64_t length = 0;       // in bytes
  uint64_t pool_offset = 0;  // place for the bytes in the pool's memory
  // Processor time that the daemon has used since its last request. The reader counts at most 60 s.
  uint64_t used_ns = 0;
};

using ReadReply = StatusMessage<504>;

// The daemon reads with several threads, and each has its own socket: the first is for the first
// pass, the second for wanted blocks, and the others for threads that help the first pass.
inline constexpr size_t kPageReaderSocketsMin = 2;
inline constexpr size_t kPageReaderSocketsMax = 1 + kMemoryReadersMax;

// A tree that runs keeps most of the processors: one thread copies its rounds.
constexpr size_t page_reader_sockets(size_t processors, bool tree_runs) {
  return tree_runs ? kPageReaderSocketsMin : 1 + memory_readers(processors);
}

}  // namespace ppmr
