// The seam between the verbs mover and RDMA itself: what the mover needs of a device, and no more.
// The real thing (verbs_fabric.h) speaks libibverbs and librdmacm; tests put a faulty fabric inside
// one process behind it (tests/stream/faulty_verbs.h), so that what goes wrong on a wire goes wrong
// there, by a seed.
//
//   source: Fabric -> Rail (listens) -> Domain -> Region of the pool, readable by the peer
//   target: Fabric -> Rail -> Domain -> Regions of the store; connect() -> ReadQueue -> post, poll
//
// A rail is one port of a device, named by one of its IP addresses. What is made of a rail keeps it
// open: when a device is to be removed, everything made of it must go.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "buffer_pool/result.h"
#include "rdma_stream/mover/bell.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

// An IPv6 address, or an IPv4 one mapped into it, and a port of the RDMA connection manager.
struct RailAddress {
  std::array<uint8_t, 16> ip{};
  uint16_t port = 0;
  uint8_t prefix_bits = 128;  // of the network that the address belongs to

  bool is_ipv4() const;
  bool same_network(const std::array<uint8_t, 16>& other) const;
  std::string ip_text() const;
  std::string text() const;  // with the port
};

// Registered memory; given back by the destructor.
class Region {
 public:
  virtual ~Region() = default;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t peer_key() const = 0;
};

enum class Rights {
  kReadByPeer,  // the source's pool: peers may read it, and nothing else
  kLandReads,   // the target's store: our own reads land there, peers get no access
};

// A protection domain: connections reach only the regions of their own domain.
// Threads: any.
class Domain {
 public:
  virtual ~Domain() = default;
  // Pins the memory. Errors: ENOMEM, with what to raise; EIO when the device is gone.
  virtual Result<std::unique_ptr<Region>> register_memory(std::span<std::byte> memory,
                                                          Rights rights) = 0;
  // Ends the connections that were admitted to it; none is admitted any more.
  virtual void close() = 0;
};

struct ReadLimits {
  uint32_t works_max = 1;       // under way at once
  uint32_t pieces_max = 1;      // of one read: 1 on iWARP
  uint32_t read_bytes_max = 0;  // of one read
};

// One RDMA READ: from one place at the peer to pieces here.
struct ReadWork {
  struct Piece {
    std::byte* data = nullptr;
    uint32_t length = 0;
    uint32_t key = 0;  // Region::local_key()
  };
  uint64_t id = 0;
  uint64_t peer_address = 0;
  uint32_t peer_key = 0;
  std::span<const Piece> pieces;
};

struct ReadCompletion {
  uint64_t id = 0;
  // Null when the bytes are here; else what the device said. After one with an error the connection
  // is of no use any more.
  const char* error = nullptr;
};

// A connection over which the target reads. Its destructor ends it: no byte lands afterwards.
// Threads: one.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;
  virtual const ReadLimits& limits() const = 0;
  // Errors: those of ibv_post_send; the connection is of no use any more.
  virtual Status post(const ReadWork& work) = 0;
  // Fills the front of `completions` with what is there, without waiting.
  virtual Result<size_t> poll(std::span<ReadCompletion> completions) = 0;
  // What completes from now on makes wait() return; to be followed by a last poll() before it.
  virtual Status arm() = 0;
  // Sleeps until something completes, `bell` rings, or `timeout` is over. Errors: the connection
  // has ended (disconnected by the peer, its device was removed).
  virtual Status wait(std::chrono::milliseconds timeout, const Bell& bell) = 0;
  virtual const std::string& description() const = 0;  // "rxe0 10.0.0.2 - 10.0.0.1:7471"
};

// Threads: any.
class Rail {
 public:
  struct ConnectOptions {
    RailAddress peer;
    std::span<const std::byte> private_data;
    // Within so long a peer that does not answer is given up, also later, when a read gets no
    // answer.
    std::chrono::milliseconds timeout{2000};
    uint32_t stream = 0;  // spreads interrupts
  };
  virtual ~Rail() = default;
  virtual const std::string& device() const = 0;
  virtual const RailAddress& address() const = 0;  // with the port, when it listens
  virtual Result<std::shared_ptr<Domain>> create_domain() = 0;
  // Connects to a rail that listens. Errors: ECANCELED when `stop` rings; ECONNREFUSED with the
  // peer's word; those of resolving the address.
  virtual Result<std::unique_ptr<ReadQueue>> connect(const std::shared_ptr<Domain>& domain,
                                                     const ConnectOptions& options,
                                                     const Bell& stop) = 0;
};

// What a peer that connected is given: the regions of a domain. A later connection of the same
// domain and stream replaces an earlier one.
struct Admission {
  std::shared_ptr<Domain> domain;
  uint32_t stream = 0;
};

// What the fabric tells of its rails, on a thread of its own. Rails are named by their position in
// what open() returned. A handler must not destroy a rail.
struct RailEvents {
  // Somebody connects with this private data. Without it the rails do not listen.
  std::function<Result<Admission>(size_t rail, std::span<const std::byte> private_data)> admit;
  // The device was removed, or has failed: everything made of the rail must be destroyed soon.
  std::function<void(size_t rail, const std::string& why)> lost;
};

// Which rails to open: --device, --gid-index, --port.
struct RailChoice {
  std::vector<std::string> devices;   // names, in this order; empty: every one that can be used
  std::optional<uint32_t> gid_index;  // of each port: the address at that index of its GID table
  uint16_t port = 0;                  // where to listen; 0: the system's choice
};

// Threads: any.
class Fabric {
 public:
  virtual ~Fabric() = default;
  // At least one, at most wire::kRailsMax. Errors: ENODEV with the reason: no device, none that can
  // be used, not the one asked for.
  virtual Result<std::vector<std::unique_ptr<Rail>>> open(const RailChoice& choice,
                                                          RailEvents events) = 0;
};

}  // namespace ppmr
