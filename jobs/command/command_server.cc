#include "jobs/command/command_server.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/spawn.h"
#include "jobs/command/byte_outlet.h"
#include "jobs/command/command.h"
#include "jobs/command/frame_socket.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kRequestTimeout{10};
constexpr std::chrono::milliseconds kRefusalTimeout{10'000};
// A client's output may be stopped for a long time.
constexpr std::chrono::milliseconds kEndTimeout = std::chrono::hours(24 * 20);
constexpr size_t kReadBytes = 64 << 10;

void on_child_end(int) {}  // the handler makes ppoll(2) return

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("create", "a pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

class CommandServer {
 public:
  CommandServer(UniqueFd socket, const std::string& token)
      : socket_(std::move(socket)), token_(token) {}

  void run() {
    if (Status started = start(); !started) {
      send_last(FrameType::kRefusal, started.error().message, kRefusalTimeout);
      return;
    }
    if (relay()) {
      send_last(FrameType::kEnd, to_text(*end_), kEndTimeout);
    } else {
      kill(-pid_, SIGKILL);
    }
  }

 private:
  // Sends the last frame and waits until the client has closed the connection. If this process
  // closed it with unread bytes, the kernel would send a reset, and the reset discards what the
  // client has not read yet. Also, CRIU does not dump the rest of a connection that belongs to no
  // process.
  void send_last(FrameType type, const std::string& payload, std::chrono::milliseconds patience) {
    socket_.send(type, payload);
    if (!socket_.flush_all()) return;
    shutdown(socket_.fd(), SHUT_WR);
    const auto deadline = Clock::now() + patience;
    for (;;) {
      pollfd readable{socket_.fd(), POLLIN, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) == 0) return;
      if (!socket_.receive()) return;
      socket_.discard();
    }
  }

  // Waits for the request, with a time limit: a stranger must not keep the process occupied without
  // end.
  Result<CommandRequest> await_request() {
    const auto deadline = Clock::now() + kRequestTimeout;
    for (;;) {
      auto frame = socket_.next();
      if (!frame) return failure(frame.error());
      if (*frame) {
        if ((*frame)->type != FrameType::kStart) return failure(EPROTO, "no command was named");
        auto request = parse_command_request((*frame)->payload);
        if (request && !equal_tokens(request->token, token_)) {
          return failure(EACCES, "the client does not belong to this job");
        }
        return request;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      pollfd readable{socket_.fd(), POLLIN, 0};
      if (left.count() <= 0 || poll(&readable, 1, static_cast<int>(left.count())) == 0) {
        return failure(ETIMEDOUT, "no request arrived");
      }
      if (Status received = socket_.receive(); !received) return failure(received.error());
    }
  }

  Status start() {
    const auto request = await_request();
    if (!request) return failure(request.error());
    if (Status adopted = adopt(*request); !adopted) return adopted;
    auto input = make_pipe();
    auto output = make_pipe();
    auto errors = make_pipe();
    if (!input || !output || !errors) return failure(EMFILE, "cannot create pipes");
    const auto pid = spawn({.argv = request->argv,
                            .files = {{input->read.get(), STDIN_FILENO},
                                      {output->write.get(), STDOUT_FILENO},
                                      {errors->write.get(), STDERR_FILENO}},
                            .group = SpawnGroup::kOwnSession});
    if (!pid) return failure(pid.error());
    pid_ = *pid;
    input_pipe_ = std::move(input->write);
    output_ = std::move(output->read);
    errors_ = std::move(errors->read);
    for (const UniqueFd* each : {&input_pipe_, &output_, &errors_}) {
      fcntl(each->get(), F_SETFL, O_NONBLOCK);
    }
    input_.fd = input_pipe_.get();
    return {};
  }

  // Takes over the request's environment and directory. This process has no other task, so the
  // command is also looked up in the PATH of the request.
  static Status adopt(const CommandRequest& request) {
    if (chdir(request.directory.c_str()) != 0) {
      const Error error = system_failure("change to the directory", request.directory).value();
      return failure(error.errno_value,
                     error.message +
                         " (start the job in a directory that its hosts share, see "
                         "--share of ppmr job agent)");
    }
    clearenv();
    for (const std::string& variable : request.environment) {
      const size_t equals = variable.find('=');
      if (equals == 0 || equals == std::string::npos) continue;
      setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
    }
    return {};
  }

  // Returns true when the command has ended, and false when the connection has ended first.
  bool relay() {
    // SIGCHLD is blocked except in ppoll(2), so that this process misses no end of the command.
    sigset_t child, none;
    sigemptyset(&none);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, nullptr);
    signal(SIGCHLD, on_child_end);
    for (;;) {
      // Takes frames before the first wait, too: they may have arrived together with the request.
      if (!take_frames()) return false;
      input_.flush();
      if (input_ended_ && input_.is_empty()) input_pipe_.reset();
      int status = 0;
      if (!end_ && waitpid(pid_, &status, WNOHANG) == pid_) {
        end_ = WIFSIGNALED(status) ? CommandEnd{.signal = WTERMSIG(status)}
                                   : CommandEnd{.exit_code = WEXITSTATUS(status)};
      }
      // Descendants of an ended command may keep its output open, so this relays only the output
      // that is already there.
      const bool more = relay_output();
      if (end_ && !more && !socket_.has_unsent()) return true;
      std::vector<pollfd> fds{{socket_.fd(), POLLRDHUP, 0}};
      if (input_.is_empty()) fds[0].events |= POLLIN;
      if (socket_.has_unsent()) fds[0].events |= POLLOUT;
      for (const UniqueFd* each : {&output_, &errors_}) {
        if (*each && !socket_.has_unsent()) fds.push_back({each->get(), POLLIN, 0});
      }
      input_.add_to(fds);
      const timespec no_time{};
      // With nothing unsent, the next round reads the rest of an ended command's output.
      const bool last_round = end_ && !socket_.has_unsent();
      ppoll(fds.data(), fds.size(), last_round ? &no_time : nullptr, &none);
      if (!socket_.flush()) return false;
      const bool readable = (fds[0].revents & (POLLIN | POLLRDHUP | POLLHUP | POLLERR)) != 0;
      if (readable && !socket_.receive()) return false;
    }
  }

  // Returns whether there was output.
  bool relay_output() {
    bool any = false;
    for (auto [pipe, type] :
         {std::pair(&output_, FrameType::kOutput), std::pair(&errors_, FrameType::kErrors)}) {
      if (!*pipe || socket_.has_unsent()) continue;
      std::array<char, kReadBytes> bytes;
      const ssize_t count = read(pipe->get(), bytes.data(), bytes.size());
      if (count > 0) {
        socket_.send(type, {bytes.data(), static_cast<size_t>(count)});
        any = true;
      } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        pipe->reset();
      }
    }
    return any;
  }

  bool take_frames() {
    for (;;) {
      auto frame = socket_.next();
      if (!frame) return false;
      if (!*frame) return true;
      const std::string& payload = (*frame)->payload;
      if ((*frame)->type == FrameType::kInput && !input_ended_) input_.put(payload);
      if ((*frame)->type == FrameType::kInputEnd) input_ended_ = true;
      if ((*frame)->type == FrameType::kSignal) send_signal(payload);
    }
  }

  void send_signal(const std::string& text) const {
    int number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    // After the command's end another process may have the pid.
    if (!end_ && number > 0 && number < NSIG) kill(-pid_, number);
  }

  FrameSocket socket_;
  const std::string& token_;
  pid_t pid_ = -1;
  UniqueFd input_pipe_, output_, errors_;
  ByteOutlet input_;
  bool input_ended_ = false;
  std::optional<CommandEnd> end_;
};

}  // namespace

void serve_command(UniqueFd socket, const std::string& token) {
  signal(SIGPIPE, SIG_IGN);
  CommandServer(std::move(socket), token).run();
}

}  // namespace ppmr
