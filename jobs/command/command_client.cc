#include "jobs/command/command_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <thread>

#include "jobs/command/byte_outlet.h"
#include "jobs/command/frame_socket.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array kRelayedSignals = {SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                                        SIGUSR1, SIGUSR2, SIGCONT};
constexpr std::chrono::seconds kCheckInterval{1};
constexpr std::chrono::milliseconds kBetweenAttempts{50};
constexpr size_t kReadBytes = 64 << 10;

Result<UniqueFd> watch_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : kRelayedSignals) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return system_failure("create", "a signalfd");
  return fd;
}

class CommandClient {
 public:
  CommandClient(UniqueFd socket, UniqueFd signals, const CommandClientOptions& options)
      : socket_(std::move(socket)),
        signals_(std::move(signals)),
        options_(options),
        input_(options.input),
        output_{.fd = options.output},
        errors_{.fd = options.errors} {}

  Result<CommandEnd> run(const CommandRequest& request) {
    socket_.send(FrameType::kStart, to_text(request));
    if (input_ < 0) socket_.send(FrameType::kInputEnd, "");
    auto next_check = Clock::now() + kCheckInterval;
    while (!end_ || !output_.is_empty() || !errors_.is_empty()) {
      poll_once();
      // The job node may have sent kEnd before it stopped reading: take_frames() decides.
      if (!socket_.flush()) {
        sends_ = false;
        socket_.give_up_sending();
      }
      output_.flush();
      errors_.flush();
      relay_signals();
      relay_input();
      if (Status taken = take_frames(); !taken) return failure(taken.error());
      if (!end_ && options_.check && Clock::now() >= next_check) {
        if (Status checked = options_.check(); !checked) return failure(checked.error());
        next_check = Clock::now() + kCheckInterval;
      }
    }
    return *end_;
  }

 private:
  bool has_room() const { return output_.is_empty() && errors_.is_empty(); }
  bool wants_input() const { return input_ >= 0 && sends_ && !socket_.has_unsent() && !end_; }

  void poll_once() {
    std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
    short events = 0;
    if (has_room() && !end_) events |= POLLIN;
    if (socket_.has_unsent()) events |= POLLOUT;
    if (events != 0) fds.push_back({socket_.fd(), events, 0});
    if (wants_input()) fds.push_back({input_, POLLIN, 0});
    output_.add_to(fds);
    errors_.add_to(fds);
    poll(fds.data(), fds.size(),
         static_cast<int>(std::chrono::milliseconds(kCheckInterval).count()));
  }

  void relay_signals() {
    signalfd_siginfo signal{};
    while (read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) {
      if (sends_) socket_.send(FrameType::kSignal, std::to_string(signal.ssi_signo));
    }
  }

  void relay_input() {
    if (!wants_input()) return;
    pollfd readable{input_, POLLIN, 0};
    if (poll(&readable, 1, 0) <= 0) return;
    std::array<char, kReadBytes> bytes;
    const ssize_t count = read(input_, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count > 0)
      return socket_.send(FrameType::kInput, {bytes.data(), static_cast<size_t>(count)});
    // n == 0: the end of the input. EIO: the foreground of the terminal is another process group.
    input_ = -1;
    socket_.send(FrameType::kInputEnd, "");
  }

  Status take_frames() {
    while (!end_ && has_room()) {
      auto frame = socket_.next();
      if (!frame) return failure(frame.error());
      if (!*frame) {
        pollfd readable{socket_.fd(), POLLIN, 0};
        if (poll(&readable, 1, 0) <= 0) return {};
        if (Status received = socket_.receive(); !received) return received;
        continue;
      }
      if (Status taken = take(**frame); !taken) return taken;
    }
    return {};
  }

  Status take(const Frame& frame) {
    switch (frame.type) {
      case FrameType::kOutput:
        output_.put(frame.payload);
        return {};
      case FrameType::kErrors:
        errors_.put(frame.payload);
        return {};
      case FrameType::kRefusal:
        return failure(ENOEXEC, frame.payload);
      case FrameType::kEnd: {
        auto end = parse_command_end(frame.payload);
        if (!end) return failure(end.error());
        end_ = *end;
        return {};
      }
      default:
        return failure(EPROTO, "the job node sent a frame that only clients send");
    }
  }

  FrameSocket socket_;
  const UniqueFd signals_;
  const CommandClientOptions& options_;
  int input_;
  bool sends_ = true;  // whether the job node still accepts bytes
  ByteOutlet output_, errors_;
  std::optional<CommandEnd> end_;
};

}  // namespace

Result<CommandEnd> run_command_in_job_node(UniqueFd socket, const CommandRequest& request,
                                           const CommandClientOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  auto signals = watch_signals();
  if (!signals) return failure(signals.error());
  return CommandClient(std::move(socket), std::move(*signals), options).run(request);
}

Result<UniqueFd> connect_to_job_node(const std::string& host, std::chrono::milliseconds timeout) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(kCommandPort).c_str(), &hints, &found);
  if (error != 0) {
    return failure(EHOSTUNREACH, "no job node is called " + host + ": " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket) return system_failure("create", "a socket");
    // Limits only the time of connect(2), because the socket has sent nothing yet.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const timeval limit{left.count() / 1000, left.count() % 1000 * 1000};
    if (left.count() > 0) setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0) {
      const timeval none{};
      setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
      const int on = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return socket;
    }
    // Process 1 of a new job node may not listen yet.
    if (Clock::now() + kBetweenAttempts >= deadline) {
      return system_failure("connect to", "the job node " + host);
    }
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

}  // namespace ppmr
