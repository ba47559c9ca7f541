// What a mover may read at the source: announced chunks, by slot, while they are announced. Over
// RDMA the device enforces this with the memory region's rights; over TCP the responder asks here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "buffer_pool/result.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

// Threads: any.
class SlotReader {
 public:
  virtual ~SlotReader() = default;
  // The bytes asked for; they stay until end_read(). Errors: EINVAL when the request does not name
  // bytes of a chunk announced now: the slot has moved on, or the peer is wrong.
  virtual Result<std::span<const std::byte>> begin_read(const wire::ReadRequest& request) = 0;
  virtual void end_read(uint32_t slot) = 0;
};

}  // namespace ppmr
