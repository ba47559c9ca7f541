// The messages between the libraries of two processes, over TCP. A frame is the length of the body
// (4 bytes) and the body. Numbers are big-endian. A connection carries one request after the other,
// and one reply for each. A request has the secret of the addressed queue pair, which proves that
// the sender may read the directory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbs_library/protocol/end_id.h"
#include "verbs_library/protocol/link.h"

namespace ppmr::verbs {

using Secret = std::array<uint8_t, 16>;

// A key as programs know it, and the key that the device has for it now.
struct KeyPair {
  uint32_t shown = 0;
  uint32_t real = 0;

  bool operator==(const KeyPair&) const = default;
};

// The address at which a process accepts control connections.
struct ControlAddress {
  std::string ip;  // IPv4 or IPv6, as text
  uint16_t port = 0;

  bool operator==(const ControlAddress&) const = default;
};

// What the other end needs to connect to a queue pair.
struct QueuePairAddress {
  Gid gid = {};
  uint32_t qpn = 0;
  uint32_t psn = 0;  // of the first packet that this end sends
  ControlAddress control;
  std::vector<KeyPair> keys;  // the keys whose two numbers differ

  bool operator==(const QueuePairAddress&) const = default;
};

struct Message {
  bool is_reply = false;
  uint8_t kind = 0;  // RequestKind or ReplyKind
  EndId from;
  EndId to;
  Secret secret = {};  // of the end `to`, in a request
  uint64_t serial = 0;
  uint64_t sent = 0;
  QueuePairAddress address;  // only in RECONNECT, in CONNECTED and in the reply KEYS

  bool operator==(const Message&) const = default;
};

inline constexpr size_t kFrameHeaderBytes = 4;
inline constexpr size_t kKeysMax = 1 << 16;
inline constexpr size_t kMessageBytesMax = 1024 + kKeysMax * 8;

// Returns the whole frame. The caller makes sure that there are at most kKeysMax keys.
std::vector<uint8_t> encode(const Message& message);
// Returns the number of bytes after the header; nullopt if no message has that size.
std::optional<size_t> decode_length(std::span<const uint8_t, kFrameHeaderBytes> header);
// Returns the message; nullopt if the body is not a message. The caller then closes the connection.
std::optional<Message> decode(std::span<const uint8_t> body);

}  // namespace ppmr::verbs
