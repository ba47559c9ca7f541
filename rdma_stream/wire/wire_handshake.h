// The first bytes on every connection, before any frame: a prefix, the body, and the CRC32C of
// both.
//
// The prefix (magic, version, kind, length) is the same in all versions, so a peer that refuses
// another version can report the number of that version.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace ppmr::wire {

inline constexpr std::array<char, 4> kMagic = {'P', 'P', 'M', 'R'};
inline constexpr uint16_t kVersion = 3;

// At most 4 GiB with chunks of 64 KiB, 64 GiB with chunks of 1 MiB.
inline constexpr uint32_t kSlotsMax = 1 << 16;
inline constexpr uint32_t kStreamsMax = 16;

using Token = std::array<uint8_t, 16>;  // random: the id of a session, or the secret to join it
using Proof = std::array<uint8_t, 32>;  // proof that the sender has a token: session_proof.h

// The protection of chunks in transit, and in the source's pool.
enum class Protection : uint16_t {
  kChecksum = 1,   // CRC32C: detects damage, but not an attacker
  kAes256Gcm = 2,  // encrypted and authenticated
};

enum class HandshakeKind : uint16_t {
  kControl = 1,
  kData = 2,
  kWelcome = 3,
  kReject = 4,
  kAgent = 5,
};

struct HandshakePrefix {
  std::array<char, 4> magic = kMagic;
  uint16_t version = kVersion;
  HandshakeKind kind = HandshakeKind::kControl;
  uint32_t length = 0;  // length of the body
  template <typename F>
  void fields(F&& field) {
    field(magic), field(version), field(kind), field(length);
  }
};
inline constexpr size_t kHandshakePrefixBytes = 12;
inline constexpr uint32_t kHandshakeBodyMaxBytes = 1024;

// Source -> target, opens or resumes a session.
struct ControlHello {
  Token session{};                 // chosen by the source
  Token token{};                   // zero opens a session; the token of its Welcome resumes it
  uint64_t received_sequence = 0;  // the last frame received from the target
  uint32_t slot_count = 0;
  uint32_t chunk_size_bytes = 0;
  uint32_t stream_count = 0;
  Protection protection = Protection::kAes256Gcm;  // the least protection that the source accepts
  std::string source_name;
  template <typename F>
  void fields(F&& field) {
    field(session), field(token), field(received_sequence), field(slot_count),
        field(chunk_size_bytes), field(stream_count), field(protection), field(source_name);
  }
};

// Source -> target: this connection carries stream `stream` of the session.
struct DataHello {
  Token session{};
  uint32_t stream = 0;
  uint64_t attempt = 0;  // 1, 2, 3 ... per stream; the target accepts a number once
  Proof proof{};
  template <typename F>
  void fields(F&& field) {
    field(session), field(stream), field(attempt), field(proof);
  }
};

// The target's answer to DataHello. Its proof shows the source that this is the target of its
// session. The source sends bytes only after that.
struct DataWelcome {
  Proof proof{};
  template <typename F>
  void fields(F&& field) {
    field(proof);
  }
};

// `ppmr migrate` -> target: this connection is for the agent of the node, see agent_frames.h.
struct AgentHello {
  std::string node_name;  // only for logs
  template <typename F>
  void fields(F&& field) {
    field(node_name);
  }
};

struct Welcome {
  Token token{};
  uint64_t received_sequence = 0;                 // the last frame received from the source
  Protection protection = Protection::kChecksum;  // protection of the session's chunks; constant
  std::string target_name;
  template <typename F>
  void fields(F&& field) {
    field(token), field(received_sequence), field(protection), field(target_name);
  }
};

enum class RejectReason : uint16_t {
  kVersion = 1,
  kUnknownSession = 2,
  kBadHello = 3,
  kBusy = 4,              // refused only for now
  kNotAuthenticated = 5,  // can be forged outside TLS: show Reject::text, but do not act on it
};

struct Reject {
  RejectReason reason = RejectReason::kBadHello;
  std::string text;
  template <typename F>
  void fields(F&& field) {
    field(reason), field(text);
  }
};

}  // namespace ppmr::wire
