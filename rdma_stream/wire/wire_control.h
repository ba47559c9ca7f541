// The control connection: frames, and the messages in them.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "rdma_stream/wire/wire_handshake.h"

namespace ppmr::wire {

// All valid frames are shorter. A longer frame was damaged, or an attacker sent it.
inline constexpr uint32_t kFrameBodyMaxBytes = 256 << 10;
// The longest inline chunk. Inline chunks do not wait behind the chunks of large files.
inline constexpr uint32_t kInlineMaxBytes = 16 << 10;
inline constexpr uint32_t kReadBackMaxBytes = 128 << 10;
inline constexpr uint32_t kNameMaxBytes = 255;
inline constexpr uint32_t kLinkTargetMaxBytes = 4095;
inline constexpr size_t kTextMaxBytes = 1024;  // length of an error message
inline constexpr uint32_t kRailsMax = 8;       // RDMA ports used together

enum class MessageType : uint16_t {
  // Carries an acknowledgement and the sequence of the latest frame, so that the peer notices a
  // lost frame even if no other frame follows. A heartbeat has no sequence number of its own and
  // is not retransmitted.
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
  kZeros = 32,
  // Source -> target: checkpoints.
  kManifestEntry = 40,
  kSeal = 41,
  kAbandon = 42,
  kReadBack = 43,
  kGoodbye = 44,
  kSealRefused = 45,
  // Source -> target: the session.
  kPatience = 46,
  kTransportOffer = 50,
  // Target -> source.
  kRelease = 60,
  kResult = 61,
  kReadBackReply = 62,
  kSpace = 63,
  kSealRequest = 64,
  kCheckpointRemoved = 65,
  kWant = 66,
  kTransportChoice = 70,
};

struct FrameHeader {
  uint32_t body_length = 0;
  MessageType type = MessageType::kHeartbeat;
  uint16_t reserved = 0;
  uint64_t sequence = 0;      // 1, 2, 3 ... per direction
  uint64_t acknowledged = 0;  // the last sequence received from the peer
  uint32_t body_crc = 0;      // CRC32C of the body
  uint32_t crc = 0;           // CRC32C of the fields above; check it before using body_length
  template <typename F>
  void fields(F&& field) {
    field(body_length), field(type), field(reserved), field(sequence), field(acknowledged),
        field(body_crc), field(crc);
  }
};
inline constexpr size_t kFrameHeaderBytes = 32;

// The source chooses ids for nodes (directories, files, symbolic links), unique in its session. 0
// is the root of the mount. The id of a checkpoint is the id of its top node.

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

// Begins a new checkpoint: a top-level entry of the mount. The target answers with Result (EEXIST:
// another source has this name).
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

// Replaces an existing entry that has the new name. All sources of a target share the top-level
// names, so the target may refuse a rename in the root: it answers with Result if `request` is not
// 0.
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

// Sent only while no chunk of the file is in flight (the source drains it first).
struct Truncate {
  static constexpr MessageType kType = MessageType::kTruncate;
  uint64_t node = 0;
  uint64_t size_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(node), field(size_bytes);
  }
};

struct PunchHole {  // sent only while no chunk of the file is in flight
  static constexpr MessageType kType = MessageType::kPunchHole;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint64_t length_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(node), field(offset), field(length_bytes);
  }
};

struct OpenedForWrite {  // the size is not final
  static constexpr MessageType kType = MessageType::kOpenedForWrite;
  uint64_t node = 0;
  template <typename F>
  void fields(F&& field) {
    field(node);
  }
};

// The last writer closed the file: its size and attributes are final. All its chunks were announced
// before; some may be in flight.
struct Closed {
  static constexpr MessageType kType = MessageType::kClosed;
  uint64_t node = 0;
  uint64_t size_bytes = 0;
  Attributes attributes;
  template <typename F>
  void fields(F&& field) {
    field(node), field(size_bytes), field(attributes);
  }
};

struct Forget {  // unlinked and closed: the source does not use the id again
  static constexpr MessageType kType = MessageType::kForget;
  uint64_t node = 0;
  template <typename F>
  void fields(F&& field) {
    field(node);
  }
};

// The value with which the target checks the bytes of a chunk.
struct ChunkCheck {
  // Number of this encryption, unique in the session; 0: not encrypted.
  uint64_t number = 0;
  // The tag of AES-256-GCM; without encryption 4 bytes of CRC32C, then zeros.
  std::array<uint8_t, 16> code{};
  template <typename F>
  void fields(F&& field) {
    field(number), field(code);
  }
  bool operator==(const ChunkCheck&) const = default;
};

enum class Compression : uint16_t {
  kNone = 0,
  kLz4 = 1,   // one block (lz4_Block_format.md)
  kZstd = 2,  // one frame (RFC 8878)
};
// The longest chunk that may be compressed: a target decompresses through memory of this size.
inline constexpr uint32_t kCompressedMaxBytes = 1 << 20;

// The source's pool holds `length` bytes of file `node` at `offset`: first compressed, unless the
// compression is kNone, then encrypted with kAes256Gcm. They take `slot_length` bytes, which begin
// at `slot_offset` of the slot's payload. (slot, generation) identifies this use of the slot.
struct Announce {
  static constexpr MessageType kType = MessageType::kAnnounce;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint32_t length = 0;
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint32_t slot_offset = 0;
  uint32_t slot_length = 0;  // `length` if not compressed, else less
  Compression compression = Compression::kNone;
  ChunkCheck check;
  template <typename F>
  void fields(F&& field) {
    field(node), field(offset), field(length), field(slot), field(generation), field(slot_offset),
        field(slot_length), field(compression), field(check);
  }
};

// Announces an inline chunk: the fields of Announce, then the bytes of the chunk as the slot
// contains them. A target without memory drops the bytes and reads the slot later. Inline chunks
// are never compressed.
struct AnnounceInline : Announce {
  static constexpr MessageType kType = MessageType::kAnnounceInline;
};

// These bytes of the file are zero, so readers of the range do not wait for a chunk. Bytes that
// land in the range, before or after this message, replace the zeros. The digest of the file does
// not change.
struct Zeros {
  static constexpr MessageType kType = MessageType::kZeros;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint64_t length_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(node), field(offset), field(length_bytes);
  }
};

// One directory, file or symbolic link of a checkpoint at the source. The source sends all entries
// before Seal. `digest` is the sum of chunk_digest() over a file's chunks; 0 if the entry is not a
// file.
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

// The target answers with Result. Its `errno_value` is 0 only if every name, length and digest
// equals the one in the manifest.
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

// From now on the source waits this long for a silent target, if that is longer than the peer
// timeout. It requests the target to wait as long for the source.
struct Patience {
  static constexpr MessageType kType = MessageType::kPatience;
  uint64_t duration_ms = 0;
  template <typename F>
  void fields(F&& field) {
    field(duration_ms);
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

// The source cannot begin the requested seal (SealRequest), for example because a file is still
// open. The checkpoint stays open.
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

struct Goodbye {  // the source ends the session: unsealed checkpoints fail
  static constexpr MessageType kType = MessageType::kGoodbye;
  template <typename F>
  void fields(F&&) {}
};

struct Release {  // the target has taken the chunk; errno_value 0: it has landed
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

struct Space {  // free space in the image store; sent on changes, at most a few times per second
  static constexpr MessageType kType = MessageType::kSpace;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(total_bytes), field(free_bytes);
  }
};

struct SealRequest {  // `ppmr commit` at the target
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

// A reader waits for these bytes, and the source has not announced them. The source sends them
// before other bytes if it can. It ignores the message if it has sent the bytes already, if it does
// not know the file, or if a program writes the file: the program then determines the order.
struct Want {
  static constexpr MessageType kType = MessageType::kWant;
  uint64_t node = 0;
  uint64_t offset = 0;
  uint64_t length_bytes = 0;
  template <typename F>
  void fields(F&& field) {
    field(node), field(offset), field(length_bytes);
  }
};

// ---- RDMA ---------------------------------------------------------------------------------------

enum class Transport : uint16_t { kNone = 0, kVerbs = 1, kTcp = 2 };

struct Rail {                         // an RDMA port where the source listens
  std::array<uint8_t, 16> address{};  // IPv6, or IPv4 mapped into it (RFC 4291, 2.5.5.2)
  uint16_t port = 0;                  // port of the RDMA connection manager
  uint32_t key = 0;                   // remote key of the pool for reads over this port
  template <typename F>
  void fields(F&& field) {
    field(address), field(port), field(key);
  }
};

// Source -> target, the first message of a session: reports whether RDMA can read the pool, and on
// which rails. Slot i's payload begins at pool_address + i * slot_stride.
struct TransportOffer {
  static constexpr MessageType kType = MessageType::kTransportOffer;
  uint16_t mode = 0;  // value of a TransportMode
  Token secret{};     // proves that an RDMA connection belongs to this session
  uint64_t pool_address = 0;
  uint64_t slot_stride = 0;
  uint32_t rail_count = 0;  // used entries of `rails`; the rest is zeros
  std::array<Rail, kRailsMax> rails{};
  std::string why_no_rails;
  template <typename F>
  void fields(F&& field) {
    field(mode), field(secret), field(pool_address), field(slot_stride), field(rail_count);
    for (Rail& rail : rails) field(rail);
    field(why_no_rails);
  }
};

// Target -> source: the transport from now on. The target sends it in answer to an offer, and again
// when the last RDMA connection is lost. kNone: the session ends, because one side requires verbs
// and RDMA does not work.
struct TransportChoice {
  static constexpr MessageType kType = MessageType::kTransportChoice;
  Transport transport = Transport::kNone;
  std::string why;
  template <typename F>
  void fields(F&& field) {
    field(transport), field(why);
  }
};

}  // namespace ppmr::wire
