#include "jobs/command/command_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>

#include "jobs/command/command_attachment.h"
#include "jobs/command/command_relay.h"
#include "jobs/command/frame_socket.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kRequestTimeout{10};
constexpr std::chrono::seconds kRefusalTimeout{10};
// Several processes may start the same command at once. The first one succeeds, and the others must
// try again to pass their connection to it.
constexpr int kStartAttempts = 3;

// Sends the refusal as the last frame, and waits until the client has closed the connection. If
// this process closed the connection with unread bytes, the kernel would send a reset, which
// discards bytes that the client has not read yet. CRIU also cannot dump a connection that no
// process has open.
void refuse(FrameSocket& socket, const Error& error) {
  socket.send({FrameType::kRefusal, static_cast<uint64_t>(error.errno_value), error.message});
  if (!socket.flush_all()) return;
  shutdown(socket.fd(), SHUT_WR);
  const auto deadline = Clock::now() + kRefusalTimeout;
  for (;;) {
    pollfd readable{socket.fd(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) == 0) return;
    if (!socket.receive()) return;
    socket.discard();
  }
}

// Waits for the request, with a time limit, so that a stranger cannot occupy the process for ever.
Result<CommandRequest> await_request(FrameSocket& socket, const std::string& token) {
  const auto deadline = Clock::now() + kRequestTimeout;
  for (;;) {
    auto frame = socket.next();
    if (!frame) return failure(frame.error());
    if (*frame) {
      if ((*frame)->type != FrameType::kStart) {
        return failure(
            EPROTO,
            "the client's first message names no command (install the same ppmr on both nodes)");
      }
      auto request = parse_command_request((*frame)->payload);
      if (request && !equal_tokens(request->token, token)) {
        return failure(EACCES, "start a command: the client does not have the token of this job");
      }
      return request;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd readable{socket.fd(), POLLIN, 0};
    if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) == 0) {
      return failure(ETIMEDOUT, "the client sent no request within " +
                                    std::to_string(kRequestTimeout.count()) + " s");
    }
    if (Status received = socket.receive(); !received) return failure(received.error());
  }
}

// Claims the command for this process, or passes the connection to the process that serves the
// command already. Returns the attachment socket if this process must start the command, and
// nullopt if it has passed the connection on. Errors: ESTALE if the command has ended; EAGAIN.
Result<std::optional<AttachmentSocket>> claim(const std::string& directory,
                                              const Resumption& resumption,
                                              Attachment& attachment) {
  for (int attempt = 0; attempt < kStartAttempts; ++attempt) {
    const Status passed = pass_attachment(directory, resumption.id, attachment);
    if (passed) return std::nullopt;
    if (passed.error().errno_value == ECONNREFUSED) {
      return failure(ESTALE, "the command has ended, or its client was away for more than " +
                                 std::to_string(resumption.patience.count()) + " s");
    }
    if (passed.error().errno_value != ENOENT) return failure(passed.error());
    auto created = AttachmentSocket::create(directory, resumption.id);
    if (created || created.error().errno_value != EADDRINUSE) return created;
  }
  return failure(EAGAIN, "several clients start the command at the same time: try again");
}

}  // namespace

void serve_command(UniqueFd socket, const std::string& token,
                   const std::vector<std::string>& environment, const std::string& directory) {
  signal(SIGPIPE, SIG_IGN);
  FrameSocket connection(std::move(socket));
  auto request = await_request(connection, token);
  if (!request) return refuse(connection, request.error());
  add_variables(request->environment, environment);
  std::optional<AttachmentSocket> attachments;
  if (request->resumption) {
    Attachment attachment{connection.take(), request->resumption->got};
    auto claimed = claim(directory, *request->resumption, attachment);
    if (claimed && !*claimed) return;
    connection = FrameSocket(std::move(attachment.connection));
    if (!claimed) return refuse(connection, claimed.error());
    attachments.emplace(std::move(**claimed));
  }
  CommandRelay relay(attachments ? &*attachments : nullptr);
  if (Status started = relay.start(*request); !started) {
    if (attachments) attachments->withdraw();
    return refuse(connection, started.error());
  }
  relay.run(std::move(connection), request->resumption);
  if (attachments) attachments->retire();
}

}  // namespace ppmr
