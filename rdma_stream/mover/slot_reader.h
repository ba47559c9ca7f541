// Gives a mover access to the bytes of chunks that are in flight at the source, by slot. The TCP
// responder checks each request with begin_read(). Over RDMA the device checks the rights of the
// memory region instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

// Threads: any.
class SlotReader {
 public:
  virtual ~SlotReader() = default;
  // Returns the requested bytes, which stay valid until end_read(). Errors: EINVAL when the range
  // is not part of a chunk in flight: the slot has been released, or the peer is faulty.
  virtual Result<std::span<const std::byte>> begin_read(const wire::ReadRequest& request) = 0;
  virtual void end_read(uint32_t slot) = 0;
};

}  // namespace ppmr
