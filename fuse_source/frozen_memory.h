// Sends the memory of frozen processes as the content of one file.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "buffer_pool/buffer_pool.h"
#include "fuse_source/lent_slots.h"
#include "fuse_source/memory_transfers.h"
#include "fuse_source/source_tree.h"
#include "rdma_stream/session/file_stream.h"

namespace ppmr {

// The name of the threads that send memory, in /proc/PID/task/TID/comm.
inline constexpr const char* kMemoryThread = "ppmr-memory";

// The memory of frozen processes, as the content of one file.
struct FrozenMemory {
  // Fills slots with the memory. One thread at a time uses a Reader.
  struct Reader {
    // Fills `slot` with the bytes at `offset`.
    std::function<Status(uint64_t offset, std::span<std::byte> slot)> read;
    // After read() has failed: the socket to a process that may still fill the slot, until it
    // replies or ends; empty if there is none.
    std::function<UniqueFd()> still_fills = [] { return UniqueFd(); };
  };
  struct Part {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  uint64_t bytes = 0;
  std::vector<Part> first;  // sent before the other parts; ranges outside the memory are ignored
  Reader reader;
  Reader wanted_reader;
  std::vector<Reader> further_readers = {};  // one for each thread that helps the first pass
  // The offset in the file at which this memory begins, behind the bytes of earlier calls. The
  // offsets above count from here.
  uint64_t file_offset = 0;
  // True: the call returns when the target has the bytes. False: when the bytes are in the pool.
  bool arrives = true;
};

// The parts of a mount that send_frozen_memory() uses.
struct MemorySlots {
  BufferPool& pool;
  MemoryTransfers& transfers;
  LentSlots& lent;
  // Blocks until a slot is free. Errors: the checkpoint has failed, or the mount ends.
  std::function<Result<SlotLease>(const SourceCheckpoint&, const Interrupted&)> wait;
  Interrupted mount_ends;
};

// Waits until the earlier chunks of the file `node` have arrived, and sends the memory to it.
// Returns when all chunks are announced. Errors: EBUSY when another call sends to the same file;
// those of the functions in `memory`, of the session and of `slots.wait`. Throws std::system_error
// when a thread cannot be started.
Status send_frozen_memory(const MemorySlots& slots, const SourceNodePointer& node,
                          const FrozenMemory& memory);

}  // namespace ppmr
