#include "jobs/command/command_relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/spawn.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = kStreamPieceMaxBytes;

void on_child_end(int) {}  // the handler makes ppoll(2) return

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return system_failure("create a pipe for", "the input and output of the command");
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Makes the request's environment and directory those of this process, which has no other task. So
// spawn() finds the command in the PATH of the request.
Status adopt(const CommandRequest& request) {
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

}  // namespace

Status CommandRelay::start(const CommandRequest& request) {
  if (Status adopted = adopt(request); !adopted) return adopted;
  auto input = make_pipe();
  auto output = make_pipe();
  auto errors = make_pipe();
  for (const auto* pipe : {&input, &output, &errors}) {
    if (!*pipe) return failure(pipe->error());
  }
  const auto pid = spawn({.argv = request.argv,
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

void CommandRelay::run(FrameSocket connection, const std::optional<Resumption>& resumption) {
  if (resumption) {
    patience_ = resumption->patience;
    accept(std::move(connection), resumption->got);
  } else {
    connection_ = std::move(connection);
  }
  relay();
  if (!streams_.has_ended()) kill(-pid_, SIGKILL);
}

void CommandRelay::relay() {
  // SIGCHLD is blocked except in ppoll(2), so that this process misses no end of the command.
  sigset_t child, none;
  sigemptyset(&none);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  signal(SIGCHLD, on_child_end);
  for (;;) {
    // Takes frames before the first wait, too: they may have arrived together with the request.
    if (connection_ && !take_frames()) lose_connection();
    pass_on_input();
    read_command();
    send_frames();
    if (!connection_ && (streams_.is_done() || Clock::now() >= deadline_)) return;
    wait(none);
  }
}

void CommandRelay::wait(const sigset_t& signals) {
  std::vector<pollfd> fds{{-1, POLLIN, 0}, {-1, POLLIN, 0}};  // poll(2) ignores -1
  if (connection_) {
    fds[0].fd = connection_->fd();
    if (connection_->has_unsent()) fds[0].events |= POLLOUT;
  }
  if (attachments_ != nullptr) fds[1].fd = attachments_->fd();
  for (const auto& [pipe, type] : outputs()) {
    if (*pipe && streams_.has_room(type)) fds.push_back({pipe->get(), POLLIN, 0});
  }
  input_.add_to(fds);
  std::chrono::nanoseconds patience{0};
  if (!is_reading_rest()) patience = std::max(patience, deadline_ - Clock::now());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(patience);
  const timespec limit{seconds.count(), (patience - seconds).count()};
  const bool limited = is_reading_rest() || !connection_;
  if (ppoll(fds.data(), fds.size(), limited ? &limit : nullptr, &signals) <= 0) return;
  if (fds[0].revents != 0 && !connection_->receive()) lose_connection();
  if (fds[1].revents == 0) return;
  auto attachment = attachments_->receive();
  if (attachment) accept(FrameSocket(std::move(attachment->connection)), attachment->got);
}

bool CommandRelay::is_reading_rest() const {
  return end_ && !streams_.has_ended() && streams_.has_room(FrameType::kOutput) &&
         streams_.has_room(FrameType::kErrors);
}

void CommandRelay::pass_on_input() {
  input_.flush();
  if (!input_.is_empty()) return;
  streams_.pass_on_input();
  if (streams_.input_ended()) input_pipe_.reset();
}

void CommandRelay::read_command() {
  int status = 0;
  if (!end_ && waitpid(pid_, &status, WNOHANG) == pid_) {
    end_ = WIFSIGNALED(status) ? CommandEnd{.signal = WTERMSIG(status)}
                               : CommandEnd{.exit_code = WEXITSTATUS(status)};
  }
  // Descendants of an ended command may keep its output open, so this relays only the output that
  // is already there.
  const bool reads_rest = is_reading_rest();
  if (!read_output() && reads_rest) {
    streams_.end(*end_);
    output_.reset();
    errors_.reset();
  }
}

bool CommandRelay::read_output() {
  bool any = false;
  for (const auto& [pipe, type] : outputs()) {
    if (!*pipe || !streams_.has_room(type)) continue;
    std::array<char, kReadBytes> bytes;
    const ssize_t count = read(pipe->get(), bytes.data(), bytes.size());
    if (count > 0) {
      streams_.put(type, {bytes.data(), static_cast<size_t>(count)});
      any = true;
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      pipe->reset();
    }
  }
  return any;
}

void CommandRelay::send_frames() {
  while (connection_) {
    // This is no failure yet, because the client may have sent kEndTaken before it closed the
    // connection. receive() decides.
    if (!connection_->flush()) return connection_->give_up_sending();
    if (connection_->has_unsent()) return;
    const auto frame = streams_.take_next();
    if (!frame) return;
    connection_->send(*frame);
  }
}

bool CommandRelay::take_frames() {
  for (;;) {
    auto frame = connection_->next();
    if (!frame) return false;
    if (!*frame) return true;
    if (!streams_.take(**frame)) return false;
    const std::string& payload = (*frame)->payload;
    if ((*frame)->type == FrameType::kInput) input_.put(payload);
    if ((*frame)->type == FrameType::kSignals) send_signals(payload);
  }
}

void CommandRelay::send_signals(const std::string& numbers) const {
  for (const char byte : numbers) {
    const int number = static_cast<unsigned char>(byte);
    // After the end of the command, another process may have the pid.
    if (!end_ && number > 0 && number < NSIG) kill(-pid_, number);
  }
}

void CommandRelay::lose_connection() {
  connection_.reset();
  deadline_ = Clock::now() + patience_;
}

void CommandRelay::accept(FrameSocket connection, const OutputPositions& got) {
  const auto positions = streams_.attach(got);
  if (!positions) {
    const Error& error = positions.error();
    connection.send({FrameType::kRefusal, static_cast<uint64_t>(error.errno_value), error.message});
    (void)connection.flush();
    return;
  }
  connection_ = std::move(connection);
  connection_->send({.type = FrameType::kAttached, .payload = to_text(*positions)});
}

}  // namespace ppmr
