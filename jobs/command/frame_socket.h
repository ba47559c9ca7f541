// Frames between a command's client and the job node that runs the command, over TCP. The
// connection moves with the job node. So each frame arrives exactly once, even if the node moves in
// the meantime.
//
// A frame is one byte (FrameType), the length of the payload (4 bytes, big endian), the payload.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ppmr {

enum class FrameType : uint8_t {
  kStart = 1,  // client: a CommandRequest (command.h), the first frame
  kInput,      // client: bytes for the command's standard input
  kInputEnd,   // client: end of the standard input
  kSignal,     // client: a signal number, in decimal
  kOutput,     // job node: bytes of the standard output
  kErrors,     // job node: bytes of the standard error
  kEnd,        // job node: a CommandEnd, the last frame
  kRefusal,    // job node: why the command was not started, the last frame
};

struct Frame {
  FrameType type;
  std::string payload;
};

// The limit allows for a large environment in a request.
inline constexpr uint32_t kFrameMaxBytes = 4 << 20;

// Threads: one.
class FrameSocket {
 public:
  // Takes a connected socket and makes it non-blocking.
  explicit FrameSocket(UniqueFd socket);

  int fd() const { return socket_.get(); }
  // Queues a frame; flush() sends it.
  void send(FrameType type, std::string_view payload);
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
  // Returns the next complete frame, or nullopt. Errors: EPROTO for an unknown type or a frame that
  // is too long.
  Result<std::optional<Frame>> next();

 private:
  UniqueFd socket_;
  std::string unsent_;
  std::string received_;
};

}  // namespace ppmr
