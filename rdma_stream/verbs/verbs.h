// The interface between the verbs mover and RDMA: what the mover needs from a device.
// verbs_fabric.h implements it over libibverbs and librdmacm. Tests use a fabric inside one process
// that injects random faults, repeatable by their seed (tests/stream/faulty_verbs.h).
//
//   source: Fabric -> Rail (listens) -> Domain -> Region of the pool, readable by the peer
//   target: Fabric -> Rail -> Domain -> Regions of the store; connect() -> ReadQueue -> post, poll
//
// A rail is one port of a device, addressed by one of its IP addresses. Objects made from a rail
// keep its device open: a device can be removed only after all of them are destroyed.
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

#include "base/result.h"
#include "rdma_stream/mover/wake_event.h"
#include "rdma_stream/wire/wire.h"

namespace ppmr {

// An IPv6 address, or an IPv4 one mapped into it, and a port of the RDMA connection manager.
struct RailAddress {
  std::array<uint8_t, 16> ip{};
  uint16_t port = 0;
  uint8_t prefix_bits = 128;  // prefix length of the network that `ip` belongs to

  bool is_ipv4() const;
  bool same_network(const std::array<uint8_t, 16>& other) const;
  std::string ip_text() const;
  std::string text() const;  // with the port
};

// Registered memory. The destructor deregisters the memory.
class Region {
 public:
  virtual ~Region() = default;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t peer_key() const = 0;
};

enum class Rights {
  kReadByPeer,  // the source's pool: peers may read it and have no other access
  kLandReads,   // the target's store: reads land in it; peers have no access
};

// A protection domain: its connections reach only its own regions.
// Threads: any.
class Domain {
 public:
  virtual ~Domain() = default;
  // Registers and pins the memory. Errors: ENOMEM, with the limit that the operator must raise; EIO
  // when the device is gone.
  virtual Result<std::unique_ptr<Region>> register_memory(std::span<std::byte> memory,
                                                          Rights rights) = 0;
  // Ends the connections that were admitted to this domain. No further connection is admitted.
  virtual void close() = 0;
};

struct ReadLimits {
  uint32_t works_max = 1;       // reads in flight on one connection
  uint32_t pieces_max = 1;      // pieces of one read: 1 on some devices
  uint32_t read_bytes_max = 0;  // bytes of one read
};

// One RDMA READ: from one range of the peer's memory into one or more pieces of local memory.
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
  // Null when the bytes have arrived, else the device's reason. The connection is unusable after an
  // error.
  const char* error = nullptr;
};

// A connection over which the target reads. The destructor ends the connection: no byte lands after
// it. Threads: one.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;
  virtual const ReadLimits& limits() const = 0;
  // Posts a read. Errors: those of ibv_post_send; the connection is unusable after an error.
  virtual Status post(const ReadWork& work) = 0;
  // Does not block. Fills the front of `completions` and returns their number.
  virtual Result<size_t> poll(std::span<ReadCompletion> completions) = 0;
  // After this call, the next completion makes wait() return. An earlier completion does not: call
  // poll() once more before wait().
  virtual Status arm() = 0;
  // Sleeps until a read completes, `wake` is signalled, or `timeout` has passed. Errors: the
  // connection has ended (the peer disconnected, or the device was removed).
  virtual Status wait(std::chrono::milliseconds timeout, const WakeEvent& wake) = 0;
  virtual const std::string& description() const = 0;  // "rxe0 10.0.0.2 - 10.0.0.1:7471"
};

// The memory that a connecting peer may read: the regions of `domain`. A later connection with the
// same domain and stream replaces the earlier one.
struct Admission {
  std::shared_ptr<Domain> domain;
  uint32_t stream = 0;
};

// A rail calls these on its own thread. A handler must not destroy the rail.
struct RailEvents {
  // Called when a peer connects, with its address and private data; only on a rail that listens.
  std::function<Result<Admission>(const RailAddress& peer, std::span<const std::byte> private_data)>
      admit;
  // Called when the device was removed or has failed. The owner must soon destroy all objects made
  // from the rail.
  std::function<void(const std::string& why)> lost;
};

// Threads: any.
class Rail {
 public:
  struct ConnectOptions {
    RailAddress peer;
    std::span<const std::byte> private_data;
    std::chrono::milliseconds timeout{2000};       // limit until the connection is open
    std::chrono::milliseconds read_timeout{5000};  // the device retransmits for at least this long
    uint32_t stream = 0;                           // selects the completion vector
  };
  virtual ~Rail() = default;
  // Begins to report events; earlier events wait until then. Called once, before the other members.
  virtual void start(RailEvents events) = 0;
  virtual const std::string& device() const = 0;
  virtual const RailAddress& address() const = 0;  // includes the port if the rail listens
  virtual Result<std::shared_ptr<Domain>> create_domain() = 0;
  // Connects to a rail that listens. Errors: ECANCELED when `stop` is signalled; ECONNREFUSED with
  // the peer's reason; those of resolving the address.
  virtual Result<std::unique_ptr<ReadQueue>> connect(const std::shared_ptr<Domain>& domain,
                                                     const ConnectOptions& options,
                                                     const WakeEvent& stop) = 0;
};

// Selects the rails to open: --device, --gid-index, --port.
struct RailChoice {
  std::vector<std::string> devices;   // device names, used in this order; empty: all usable devices
  std::optional<uint32_t> gid_index;  // selects the address at this index of each port's GID table
  uint16_t port = 0;                  // port on which to listen; 0: the system chooses
};

enum class RailRole { kListen, kConnect };

// Threads: any.
class Fabric {
 public:
  virtual ~Fabric() = default;
  // Returns between one and wire::kRailsMax rails. Errors: ENODEV with the reason: there is no
  // device, no usable device, or not the requested device.
  virtual Result<std::vector<std::unique_ptr<Rail>>> open(const RailChoice& choice,
                                                          RailRole role) = 0;
};

}  // namespace ppmr
