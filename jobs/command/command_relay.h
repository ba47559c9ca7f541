// The task of the process that serves a command: it starts the command, and relays between the
// command and its client. A resumable command can have several connections, one after the other.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "jobs/command/byte_outlet.h"
#include "jobs/command/command.h"
#include "jobs/command/command_attachment.h"
#include "jobs/command/frame_socket.h"
#include "jobs/command/stream_resumption.h"

namespace ppmr {

// Threads: one. It handles SIGCHLD.
class CommandRelay {
 public:
  // `attachments`: null if the command is not resumable.
  explicit CommandRelay(const AttachmentSocket* attachments) : attachments_(attachments) {}

  // Starts the command. Changes the environment and the directory of this process to those of the
  // request. Errors: those of chdir(2) and spawn().
  Status start(const CommandRequest& request);
  // Relays, and returns when the client has the end of the command, or when the client has been
  // away for too long. Kills a command that has not ended.
  void run(FrameSocket connection, const std::optional<Resumption>& resumption);

 private:
  void relay();
  void wait(const sigset_t& signals);
  std::array<std::pair<UniqueFd*, FrameType>, 2> outputs() {
    return {std::pair(&output_, FrameType::kOutput), std::pair(&errors_, FrameType::kErrors)};
  }
  // Returns whether the command has ended and the next round reads the rest of its output.
  bool is_reading_rest() const;
  void pass_on_input();
  void read_command();
  // Returns whether there was output.
  bool read_output();
  void send_frames();
  // Returns whether the connection is still good.
  bool take_frames();
  void send_signals(const std::string& numbers) const;
  void lose_connection();
  // Replaces the connection with a new one. The old connection may be dead although no error has
  // shown that.
  void accept(FrameSocket connection, const OutputPositions& got);

  const AttachmentSocket* const attachments_;
  std::optional<FrameSocket> connection_;
  ServerResumption streams_;
  std::chrono::seconds patience_{0};
  std::chrono::steady_clock::time_point deadline_;  // for a new connection, while there is none
  pid_t pid_ = -1;
  UniqueFd input_pipe_, output_, errors_;
  ByteOutlet input_;
  std::optional<CommandEnd> end_;
};

}  // namespace ppmr
