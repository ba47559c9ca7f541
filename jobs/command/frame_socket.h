// Frames between a command's client and the job node that runs the command, over TCP. The
// connection moves with the job node. So each frame arrives exactly once, even if the node moves in
// the meantime.
//
// A frame is one byte (FrameType), a position (8 bytes), the length of the payload (4 bytes), a
// CRC32C of these fields and of the payload (4 bytes), the payload. Numbers are big endian.
//
// Position and checksum are for job nodes that are rolled back. Such a node goes on from an earlier
// state of its connection, and its frames can differ from those before. The client's kernel
// discards as many bytes as the client already has. It takes the next bytes as the continuation of
// the old stream, even if they begin in the middle of a frame. The receiver detects this here
// (checksum) or in stream_resumption.h (position).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

// There are four streams of bytes: kInput and kSignals from the client, kOutput and kErrors to the
// client. The position in their frames is the number of bytes of the stream before this frame.
enum class FrameType : uint8_t {
  kStart = 1,  // client: a CommandRequest (command.h), the first frame
  kAttached,   // job node: InputPositions (command.h), the answer if the command is resumable
  kInput,      // client: bytes for the command's standard input
  kInputEnd,   // client: end of the standard input; the position is its length
  kSignals,    // client: signal numbers, one byte each
  kOutput,     // job node: bytes of the standard output
  kErrors,     // job node: bytes of the standard error
  kConfirm,    // both: the receiver of a stream has passed on so many bytes (position); the payload
               // is the FrameType of the stream
  kEnd,        // job node: a CommandEnd, after all output; the position is the number of bytes of
               // output and errors together
  kEndTaken,   // client: the answer to kEnd, the last frame
  kRefusal,    // job node: why the command was not started or not attached to, the last frame; the
               // position is an errno
};

struct Frame {
  FrameType type;
  uint64_t position = 0;
  std::string payload{};
};

// The limit allows for a large environment in a request.
inline constexpr uint32_t kFrameMaxBytes = 4 << 20;

// Threads: one.
class FrameSocket {
 public:
  // Takes a connected socket and makes it non-blocking.
  explicit FrameSocket(UniqueFd socket);

  int fd() const { return socket_.get(); }
  // Gives the connection away. Bytes that were received, but not returned by next(), are lost.
  UniqueFd take() { return std::move(socket_); }
  // Queues a frame; flush() sends it.
  void send(const Frame& frame);
  bool has_unsent() const { return !unsent_.empty(); }
  // Sends what the socket accepts without blocking. Errors: those of send(2).
  Status flush();
  // Sends everything. Errors: those of send(2) and poll(2).
  Status flush_all();
  // Reads what has arrived, without blocking. Errors: ECONNRESET at the end of the stream; those of
  // recv(2).
  Status receive();
  // Drops the received bytes.
  void discard() { received_.clear(); }
  // Drops the bytes that are not sent yet.
  void give_up_sending() { unsent_.clear(); }
  // Returns the next complete frame, or nullopt. Errors: EPROTO for an unknown type, a frame that
  // is too long, or a wrong checksum.
  Result<std::optional<Frame>> next();

 private:
  UniqueFd socket_;
  std::string unsent_;
  std::string received_;
};

}  // namespace ppmr
