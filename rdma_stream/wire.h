// The bytes on the wire. README.md documents them for people; here each message is a struct whose
// `fields` lists its members once, for writing and for reading alike. All integers little-endian.
//
// A decoder checks every length against what is left of the frame; what the values mean (node ids,
// slots, names) is checked by whoever acts on them.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "buffer_pool/result.h"

namespace ppmr::wire {

inline constexpr std::array<char, 4> kMagic = {'P', 'P', 'M', 'R'};
inline constexpr uint16_t kVersion = 2;

// Everything but pages is small; a longer frame is an attack or noise.
inline constexpr uint32_t kFrameBodyMaxBytes = 256 << 10;
// Chunks up to this length travel inside their announcement: small files do not queue behind pages.
inline constexpr uint32_t kInlineMaxBytes = 16 << 10;
inline constexpr uint32_t kReadBackMaxBytes = 128 << 10;
inline constexpr uint32_t kNameMaxBytes = 255;
inline constexpr uint32_t kLinkTargetMaxBytes = 4095;
inline constexpr size_t kTextMaxBytes = 1024;   // of an error, for people
inline constexpr uint32_t kSlotsMax = 1 << 16;  // 4 GiB of the smallest chunks, 64 of the largest
inline constexpr uint32_t kStreamsMax = 16;
inline constexpr uint32_t kRailsMax = 8;  // RDMA ports used together

using Token = std::array<uint8_t, 16>;  // random; names a session or admits to it
using Proof = std::array<uint8_t, 32>;  // that a token is known: session_proof.h

// ---- Handshake: the first bytes of every connection, outside the frames -------------------------
//
// The prefix (magic, version, kind, length) never changes, so that any two versions can tell each
// other apart. The body follows, then the CRC32C of prefix and body.

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
  uint32_t length = 0;  // of what follows
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
  Token token{};                   // zero to open; the target's answer to the opening, to resume
  uint64_t received_sequence = 0;  // the last frame of the target's that the source has
  uint32_t slot_count = 0;
  uint32_t chunk_size_bytes = 0;
  uint32_t stream_count = 0;
  std::string source_name;
  template <typename F>
  void fields(F&& field) {
    field(session), field(token), field(received_sequence), field(slot_count),
        field(chunk_size_bytes), field(stream_count), field(source_name);
  }
};

// Source -> target: this connection carries stream `stream` of the session.
struct DataHello {
  Token session{};
  uint32_t stream = 0;
  uint64_t attempt = 0;  // 1, 2, 3 ... per stream: none is admitted twice
  Proof proof{};
  template <typename F>
  void fields(F&& field) {
    field(session), field(stream), field(attempt), field(proof);
  }
};

// The answer, with the target's own proof: the source gives its bytes to nobody else.
struct DataWelcome {
  Proof proof{};
  template <typename F>
  void fields(F&& field) {
    field(proof);
  }
};

// `ppmr migrate` -> target: this connection asks the agent of the node, see agent_frames.h.
struct AgentHello {
  std::string node_name;  // for people
  template <typename F>
  void fields(F&& field) {
    field(node_name);
  }
};

struct Welcome {
  Token token{};
  uint64_t received_sequence = 0;  // the last frame of the source's that the target has
  std::string target_name;
  template <typename F>
  void fields(F&& field) {
    field(token), field(received_sequence), field(target_name);
  }
};

enum class RejectReason : uint16_t {
  kVersion = 1,
  kUnknownSession = 2,
  kBadHello = 3,
  kBusy = 4,
  kNotAuthenticated = 5,  // may come in plain text, then for people alone: anybody can send it
};

struct Reject {
  RejectReason reason = RejectReason::kBadHello;
  std::string text;
  template <typename F>
  void fields(F&& field) {
    field(reason), field(text);
  }
};

// ---- Frames on the control connection ----------------------------------------------------------

enum class MessageType : uint16_t {
  // Carries an acknowledgement and the sequence of the frame sent last, so that a lost one is
  // missed
  // even when none follows. Has no sequence of its own and is not sent again.
  kHeartbeat = 1,
  // Source -> target: names and attributes.
  kClaim = 10,
  kMake = 11,
  kRemove = 12,
  kRename = 13,
  kSetAttributes = 14,
  kTruncate = 15,
  kPunchHole = 16,
  kOpenedForWrite = 17,
  kClosed = 18,
  kForget = 19,
  // Source -> target: chunks.
  kAnnounce = 30,
  kAnnounceInline = 31,
  // Source -> target: checkpoints.
  kManifestEntry = 40,
  kSeal = 41,
  kAbandon = 42,
  kReadBack = 43,
  kGoodbye = 44,
  kSealRefused = 45,
  kTransportOffer = 50,
  // Target -> source.
  kRelease = 60,
  kResult = 61,
  kReadBackReply = 62,
  kSpace = 63,
  kSealRequest = 64,
  kCheckpointRemoved = 65,
  kTransportChoice = 70,
};

struct FrameHeader {
  uint32_t body_length = 0;
  MessageType type = MessageType::kHeartbeat;
  uint16_t reserved = 0;
  uint64_t sequence = 0;      // 1, 2, 3 ... per direction
  uint64_t acknowledged = 0;  // the last sequence received from the other side
  uint32_t body_crc = 0;      // CRC32C of the body
  uint32_t crc = 0;           // of the fields above: a length is believed only after that
  template <typename F>
  void fields(F&& field) {
    field(body_length), field(type), field(reserved), field(sequence), field(acknowledged),
        field(body_crc), field(crc);
  }
};
inline constexpr size_t kFrameHeaderBytes = 32;

// Nodes (directories, files, symbolic links) are named by ids that the source chooses, unique in
// its session; 0 is the root of the mount. A checkpoint is named by the id of its top node.

enum class NodeType : uint16_t { kDirectory = 1, kFile = 2, kSymlink = 3 };

struct Attributes {
  uint32_t mode = 0;  // permission bits
  uint32_t uid = 0;
  uint32_t gid = 0;
  int64_t atime_ns = 0;  // since the epoch
  int64_t mtime_ns = 0;
  template <typename F>
  void fields(F&& field) {
    field(mode), field(uid), field(gid), field(atime_ns), field(mtime_ns);
  }
};

// A new checkpoint: a top-level entry of the mount. Answered by Result (EEXIST: another source's).
struct Claim {
  static constexpr MessageType kType = MessageType::kClaim;
  uint64_t request = 0;
  uint64_t node = 0;
  NodeType type = NodeType::kDirectory;
  Attributes attributes;
  std::string name;
  std::string link_target;
  template <typename F>
  void fields(F&& field) {
    field(request), field(node), field(type), field(attributes), field(name), field(link_target);
  }
};

struct Make {
  static constexpr MessageType kType = MessageType::kMake;
  uint64_t parent = 0;
  uint64_t node = 0;
  NodeType type = NodeType::kDirectory;
  Attributes attributes;
  std::string name;
  std::string link_target;
  template <typename F>
  void fields(F&& field) {
    field(parent), field(node), field(type), field(attributes), field(name), field(link_target);
  }
};

struct Remove {
  static constexpr MessageType kType = MessageType::kRemove;
  uint64_t parent = 0;
  std::string name;
  template <typename F>
  void fields(F&& field) {
    field(parent), field(name);
  }
};

// `request` is non-zero (and answered by Result) when a parent is the root: top-level names are
// shared by all sources of a target. An existing entry under the new name is replaced.
struct Rename {
  static constexpr MessageType kType = MessageType::kRename;
  uint64_t request = 0;
  uint64_t parent = 0;
  uint64_t new_parent = 0;
  std::string name;
  std::string new_name;
  template <typename F>
  void fields(F&& field) {
    field(request), field(parent), field(new_parent), field(name), field(new_name);
  }
};

struct SetAttributes {
  static constexpr MessageType kType = MessageType::kSetAttributes;
  uint64_t node = 0;
  Attributes attributes;
  template <typename F>
  void fields(F&& field) {
    field(node), field(attributes);
  }
};

// Sent only while no chunk of the file is under way (the source drains it first).
struct Truncate {
  static constexpr MessageType kType = MessageType::kTruncate;
  uint64_t node = 0;
  uint64_t size_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(node), field(size_bytes);
  }
};

struct PunchHole {  // as Truncate: only while no chunk of the file is under way
  static constexpr MessageType kType = MessageType::kPunchHole;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint64_t length_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(node), field(offset), field(length_bytes);
  }
};

struct OpenedForWrite {  // the size is open again
  static constexpr MessageType kType = MessageType::kOpenedForWrite;
  uint64_t node = 0;
  template <typename F>
  void fields(F&& field) {
    field(node);
  }
};

// The last writer closed the file: its size is final. All its chunks were announced before.
struct Closed {
  static constexpr MessageType kType = MessageType::kClosed;
  uint64_t node = 0;
  uint64_t size_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(node), field(size_bytes);
  }
};

struct Forget {  // unlinked and closed: the id is not used again
  static constexpr MessageType kType = MessageType::kForget;
  uint64_t node = 0;
  template <typename F>
  void fields(F&& field) {
    field(node);
  }
};

// `length` bytes of file `node` at `offset` wait in the source's pool. (slot, generation) names
// this use of the slot; `slot_offset` is where in its payload the bytes begin.
struct Announce {
  static constexpr MessageType kType = MessageType::kAnnounce;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint32_t slot_offset = 0;
  uint32_t crc = 0;  // CRC32C of the bytes
  template <typename F>
  void fields(F&& field) {
    field(node), field(offset), field(length), field(slot), field(generation), field(slot_offset),
        field(crc);
  }
};

// The same, with the bytes themselves behind the fields.
struct AnnounceInline : Announce {
  static constexpr MessageType kType = MessageType::kAnnounceInline;
};

// What the source says a checkpoint consists of, one entry a node, before Seal. `digest` of a file
// is the sum of chunk_digest() over its chunks, 0 for others.
struct ManifestEntry {
  static constexpr MessageType kType = MessageType::kManifestEntry;
  uint64_t checkpoint = 0;
  uint64_t node = 0;
  uint64_t parent = 0;
  NodeType type = NodeType::kDirectory;
  uint32_t mode = 0;
  uint64_t size_bytes = 0;
  uint64_t digest = 0;
  std::string name;
  template <typename F>
  void fields(F&& field) {
    field(checkpoint), field(node), field(parent), field(type), field(mode), field(size_bytes),
        field(digest), field(name);
  }
};

// Answered by Result: 0 only when every name, length and digest of the manifest agrees.
struct Seal {
  static constexpr MessageType kType = MessageType::kSeal;
  uint64_t request = 0;
  uint64_t checkpoint = 0;
  uint64_t entry_count = 0;
  template <typename F>
  void fields(F&& field) {
    field(request), field(checkpoint), field(entry_count);
  }
};

struct Abandon {  // the checkpoint has failed at the source and will not be completed
  static constexpr MessageType kType = MessageType::kAbandon;
  uint64_t checkpoint = 0;
  std::string reason;
  template <typename F>
  void fields(F&& field) {
    field(checkpoint), field(reason);
  }
};

// A seal that the target asked for (SealRequest) and that the source cannot even begin: a file is
// still open, say. The checkpoint goes on.
struct SealRefused {
  static constexpr MessageType kType = MessageType::kSealRefused;
  uint64_t checkpoint = 0;
  std::string reason;
  template <typename F>
  void fields(F&& field) {
    field(checkpoint), field(reason);
  }
};

struct ReadBack {  // the source reads what it wrote; answered by ReadBackReply
  static constexpr MessageType kType = MessageType::kReadBack;
  uint64_t request = 0;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
  template <typename F>
  void fields(F&& field) {
    field(request), field(node), field(offset), field(length);
  }
};

struct Goodbye {  // the source ends on purpose: what is not sealed has failed
  static constexpr MessageType kType = MessageType::kGoodbye;
  template <typename F>
  void fields(F&&) {}
};

struct Release {  // errno_value 0: the chunk is in place and its CRC was checked there
  static constexpr MessageType kType = MessageType::kRelease;
  uint32_t slot = 0;
  uint32_t generation = 0;
  int32_t errno_value = 0;
  template <typename F>
  void fields(F&& field) {
    field(slot), field(generation), field(errno_value);
  }
};

struct Outcome {
  static constexpr MessageType kType = MessageType::kResult;
  uint64_t request = 0;
  int32_t errno_value = 0;
  std::string text;
  template <typename F>
  void fields(F&& field) {
    field(request), field(errno_value), field(text);
  }
};

struct ReadBackReply {  // the bytes follow the fields
  static constexpr MessageType kType = MessageType::kReadBackReply;
  uint64_t request = 0;
  int32_t errno_value = 0;
  template <typename F>
  void fields(F&& field) {
    field(request), field(errno_value);
  }
};

struct Space {  // of the target's store; sent when it changed, at most a few times a second
  static constexpr MessageType kType = MessageType::kSpace;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(total_bytes), field(free_bytes);
  }
};

struct SealRequest {  // somebody at the target asked for a commit
  static constexpr MessageType kType = MessageType::kSealRequest;
  uint64_t checkpoint = 0;
  template <typename F>
  void fields(F&& field) {
    field(checkpoint);
  }
};

struct CheckpointRemoved {  // rm -r at the target
  static constexpr MessageType kType = MessageType::kCheckpointRemoved;
  uint64_t checkpoint = 0;
  template <typename F>
  void fields(F&& field) {
    field(checkpoint);
  }
};

// ---- RDMA ---------------------------------------------------------------------------------------

enum class Transport : uint16_t { kNone = 0, kVerbs = 1, kTcp = 2 };

struct Rail {                         // an RDMA port where the source listens
  std::array<uint8_t, 16> address{};  // IPv6, or IPv4 mapped into it (RFC 4291, 2.5.5.2)
  uint16_t port = 0;                  // of the RDMA connection manager
  uint32_t key = 0;                   // of the pool's memory, when it is read over this port
  template <typename F>
  void fields(F&& field) {
    field(address), field(port), field(key);
  }
};

// Source -> target, once, first of all: whether and where the pool can be read by RDMA. Slot i's
// payload begins at pool_address + i * slot_stride.
struct TransportOffer {
  static constexpr MessageType kType = MessageType::kTransportOffer;
  uint16_t mode = 0;  // a TransportMode
  Token secret{};     // admits RDMA connections to this session
  uint64_t pool_address = 0;
  uint64_t slot_stride = 0;
  uint32_t rail_count = 0;  // of `rails`, those in front; the rest is zeros
  std::array<Rail, kRailsMax> rails{};
  std::string why_no_rails;
  template <typename F>
  void fields(F&& field) {
    field(mode), field(secret), field(pool_address), field(slot_stride), field(rail_count);
    for (Rail& rail : rails) field(rail);
    field(why_no_rails);
  }
};

// Target -> source: how bytes travel from now on; the answer to an offer, and again when it
// changes. kNone: the session ends, because one side wants verbs only and they cannot be had.
struct TransportChoice {
  static constexpr MessageType kType = MessageType::kTransportChoice;
  Transport transport = Transport::kNone;
  std::string why;
  template <typename F>
  void fields(F&& field) {
    field(transport), field(why);
  }
};

// The first bytes of the private data of an RDMA connection: who is it that wants to read? At most
// 56 bytes (the InfiniBand request, 92 - 36 of the IP address header).
struct RdmaHello {
  std::array<char, 4> magic = kMagic;
  uint16_t version = kVersion;
  uint16_t stream = 0;  // a later connection of the same stream replaces an earlier one
  Token secret{};       // of the offer
  template <typename F>
  void fields(F&& field) {
    field(magic), field(version), field(stream), field(secret);
  }
};
inline constexpr size_t kRdmaHelloBytes = 24;

// One chunk's part of its file's digest. The sum over a file's chunks is the same in whatever order
// they land, and changes when one is lost, doubled or lands elsewhere.
uint64_t chunk_digest(uint64_t offset, uint32_t length, uint32_t crc);

// ---- Data connections: an RDMA READ in words ---------------------------------------------------

struct ReadRequest {  // target -> source
  uint32_t id = 0;    // the target's; comes back with the bytes
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint32_t slot_offset = 0;
  uint32_t length = 0;
  uint32_t crc = 0;  // of the fields above
  template <typename F>
  void fields(F&& field) {
    field(id), field(slot), field(generation), field(slot_offset), field(length), field(crc);
  }
};

struct ReadResponse {  // source -> target; `length` bytes follow
  uint32_t id = 0;
  uint32_t generation = 0;
  uint32_t length = 0;
  uint32_t crc = 0;  // of the fields above; the payload's came with the announcement
  template <typename F>
  void fields(F&& field) {
    field(id), field(generation), field(length), field(crc);
  }
};
inline constexpr size_t kReadRequestBytes = 24;
inline constexpr size_t kReadResponseBytes = 16;

// ---- Agent connections: one JSON object a frame
// --------------------------------------------------

struct AgentFrameHeader {  // the body follows
  uint32_t body_length = 0;
  uint32_t body_crc = 0;
  uint32_t crc = 0;  // of the fields above
  template <typename F>
  void fields(F&& field) {
    field(body_length), field(body_crc), field(crc);
  }
};
inline constexpr size_t kAgentFrameHeaderBytes = 12;

// ---- Writing and reading fields ----------------------------------------------------------------

// Appends fields to a fixed buffer. Overrunning it is our own bug: callers bound their strings.
class Writer {
 public:
  explicit Writer(std::span<std::byte> buffer) : buffer_(buffer) {}

  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      (*this)(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (std::is_integral_v<T>) {
      for (size_t i = 0; i < sizeof(T); ++i) {
        byte(static_cast<std::byte>((static_cast<std::make_unsigned_t<T>>(value) >> (8 * i)) &
                                    0xff));
      }
    } else if constexpr (std::is_same_v<T, std::string>) {
      (*this)(static_cast<uint32_t>(value.size()));
      for (char c : value) byte(static_cast<std::byte>(c));
    } else if constexpr (requires { value.begin(); }) {
      for (auto c : value) byte(static_cast<std::byte>(c));
    } else {
      const_cast<T&>(value).fields(*this);
    }
  }
  size_t written_bytes() const { return position_; }
  bool overrun() const { return overrun_; }

 private:
  void byte(std::byte value) {
    if (position_ < buffer_.size()) {
      buffer_[position_++] = value;
    } else {
      overrun_ = true;
    }
  }
  std::span<std::byte> buffer_;
  size_t position_ = 0;
  bool overrun_ = false;
};

// Takes fields from bytes that a stranger sent: `ok()` turns false instead of reading past the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> raw{};
      (*this)(raw);
      value = static_cast<T>(raw);
    } else if constexpr (std::is_integral_v<T>) {
      std::make_unsigned_t<T> raw = 0;
      for (size_t i = 0; i < sizeof(T); ++i) {
        raw |= static_cast<std::make_unsigned_t<T>>(
            static_cast<std::make_unsigned_t<T>>(std::to_integer<uint8_t>(byte())) << (8 * i));
      }
      value = static_cast<T>(raw);
    } else if constexpr (std::is_same_v<T, std::string>) {
      uint32_t length = 0;
      (*this)(length);
      if (length > rest_.size()) {
        ok_ = false;
        return;
      }
      value.assign(reinterpret_cast<const char*>(rest_.data()), length);
      rest_ = rest_.subspan(length);
    } else if constexpr (requires { value.begin(); }) {
      for (auto& c : value) c = static_cast<std::decay_t<decltype(c)>>(byte());
    } else {
      value.fields(*this);
    }
  }
  bool ok() const { return ok_; }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::byte byte() {
    if (rest_.empty()) {
      ok_ = false;
      return std::byte{0};
    }
    const std::byte value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

template <typename Message>
std::vector<std::byte> encode(const Message& message, size_t size_max_bytes = 16 << 10) {
  std::vector<std::byte> bytes(size_max_bytes);
  Writer writer(bytes);
  writer(message);
  bytes.resize(writer.written_bytes());
  return bytes;
}

// The message in `body`; EPROTO when it is cut short. Where bytes follow the fields, `rest` gets
// them; without `rest` there must be none.
template <typename Message>
Result<Message> decode(std::span<const std::byte> body,
                       std::span<const std::byte>* rest = nullptr) {
  Message message;
  Reader reader(body);
  reader(message);
  if (!reader.ok()) return failure(EPROTO, "malformed message: too short");
  if (rest != nullptr) {
    *rest = reader.rest();
  } else if (!reader.rest().empty()) {
    return failure(EPROTO, "malformed message: too long");
  }
  return message;
}

// The checksum of a FrameHeader's, ReadRequest's, ReadResponse's or AgentFrameHeader's fields
// before `crc`, which is last.
template <typename Message>
uint32_t fields_crc(Message message);

}  // namespace ppmr::wire
