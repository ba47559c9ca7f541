#include "jobs/command/command_client.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>

#include "jobs/command/byte_outlet.h"
#include "jobs/command/frame_socket.h"
#include "jobs/command/stream_resumption.h"

namespace ppmr {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::array kRelayedSignals = {SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                                        SIGUSR1, SIGUSR2, SIGCONT};
constexpr std::chrono::seconds kCheckInterval{1};
constexpr milliseconds kBetweenAttempts{50};
constexpr size_t kReadBytes = kStreamPieceMaxBytes;
// The longest time between two attempts to connect again. The time doubles after each attempt.
constexpr milliseconds kAttemptIntervalMax{1000};
constexpr std::chrono::seconds kAttachTimeout{20};
constexpr std::chrono::seconds kQuietTime{5};

Result<UniqueFd> watch_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : kRelayedSignals) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return system_failure("create a signalfd for", "the signals to the command");
  return fd;
}

class CommandClient {
 public:
  CommandClient(UniqueFd signals, CommandRequest request, const CommandClientOptions& options)
      : signals_(std::move(signals)),
        request_(std::move(request)),
        options_(options),
        streams_(options.state ? ClientResumption(*options.state) : ClientResumption()),
        input_(options.input),
        output_{.fd = options.output},
        errors_{.fd = options.errors} {}

  Result<CommandEnd> run(UniqueFd socket) {
    begin(std::move(socket));
    if (input_ < 0) streams_.end_input();
    auto next_check = Clock::now() + kCheckInterval;
    while (!has_end() || !has_room()) {
      poll_once();
      output_.flush();
      errors_.flush();
      if (has_room()) streams_.pass_on();
      if (!stands_still_) {
        relay_signals();
        relay_input();
        if (Status exchanged = connection_ ? exchange() : connect_again(); !exchanged) {
          return failure(exchanged.error());
        }
      }
      if (!has_end() && options_.check && Clock::now() >= next_check) {
        const auto news = options_.check();
        if (!news) return failure(news.error());
        if (*news == CommandNews::kRolledBack && request_.resumption) connection_.reset();
        stand_still(*news == CommandNews::kStandsStill);
        next_check = Clock::now() + kCheckInterval;
      }
    }
    return *streams_.end();
  }

 private:
  bool has_end() const { return streams_.end().has_value(); }
  bool has_room() const { return output_.is_empty() && errors_.is_empty(); }
  // Reads frames only if the terminal has taken all output. The answer to kStart is no output, so
  // the client reads it in any case.
  bool wants_frames() const { return !has_end() && (has_room() || !is_attached_); }
  bool wants_input() const { return input_ >= 0 && sends_ && !has_end() && streams_.wants_input(); }

  // Stands still only with a connection: without one, the client does not know how far the job node
  // is.
  void stand_still(bool now) {
    const bool begins = now && !stands_still_ && is_attached_ && connection_ && has_room();
    if (begins && request_.resumption && options_.stand_still) {
      stands_still_ = true;
      options_.stand_still(streams_.state());
    }
    stands_still_ = stands_still_ && now;
  }

  void poll_once() {
    std::vector<pollfd> fds;
    if (stands_still_) {
      poll(nullptr, 0, static_cast<int>(std::chrono::ceil<milliseconds>(kCheckInterval).count()));
      return;
    }
    fds.push_back({signals_.get(), POLLIN, 0});
    short events = 0;
    if (wants_frames()) events |= POLLIN;
    if (request_.resumption && !has_end()) events |= POLLRDHUP;
    if (connection_ && connection_->has_unsent()) events |= POLLOUT;
    if (connection_ && events != 0) fds.push_back({connection_->fd(), events, 0});
    if (wants_input()) fds.push_back({input_, POLLIN, 0});
    output_.add_to(fds);
    errors_.add_to(fds);
    auto patience = std::chrono::ceil<milliseconds>(kCheckInterval);
    if (!connection_) {
      const auto left = std::chrono::ceil<milliseconds>(next_attempt_ - Clock::now());
      patience = std::clamp(left, milliseconds(0), patience);
    }
    poll(fds.data(), fds.size(), static_cast<int>(patience.count()));
  }

  void relay_signals() {
    signalfd_siginfo signal{};
    while (read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) {
      streams_.put_signal(static_cast<int>(signal.ssi_signo));
    }
  }

  void relay_input() {
    if (!wants_input()) return;
    pollfd readable{input_, POLLIN, 0};
    if (poll(&readable, 1, 0) <= 0) return;
    std::array<char, kReadBytes> bytes;
    const ssize_t count = read(input_, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count > 0) return streams_.put_input({bytes.data(), static_cast<size_t>(count)});
    // count == 0: the end of the input. EIO: another process group is in the foreground of the
    // terminal.
    input_ = -1;
    streams_.end_input();
  }

  // Begins to use a connection, and sends kStart. If the command is resumable, the client sends
  // nothing more until the job node has answered with kAttached.
  void begin(UniqueFd socket) {
    connection_.emplace(std::move(socket));
    sends_ = true;
    is_attached_ = !request_.resumption;
    attach_deadline_ = Clock::now() + kAttachTimeout;
    if (request_.resumption) request_.resumption->got = streams_.positions();
    connection_->send({.type = FrameType::kStart, .payload = to_text(request_)});
  }

  // Sends and receives what it can without blocking. Closes the connection if it is lost and the
  // command is resumable. Returns only errors that end the client.
  Status exchange() {
    send_frames();
    if (Status taken = take_frames(); !taken) {
      if (!request_.resumption || is_final_) return taken;
      last_failure_ = taken.error().message;
      connection_.reset();
    } else if ((!is_attached_ && Clock::now() >= attach_deadline_) || is_hung_up()) {
      connection_.reset();
    }
    send_frames();  // the answer to kEnd, before the client closes the connection
    return {};
  }

  // Returns whether the connection is lost although it may still have unread bytes, which the
  // client cannot read because the terminal is slow. The client must not wait for the terminal: the
  // job node waits for a new connection only for a limited time, and sends the bytes again.
  bool is_hung_up() const {
    if (!request_.resumption || wants_frames() || has_end()) return false;
    pollfd state{connection_->fd(), POLLRDHUP, 0};
    return poll(&state, 1, 0) > 0;
  }

  void send_frames() {
    while (connection_ && sends_) {
      // This is no failure yet, because the job node may have sent kEnd before it stopped reading.
      // take_frames() decides.
      if (!connection_->flush()) {
        sends_ = false;
        return connection_->give_up_sending();
      }
      if (!is_attached_ || connection_->has_unsent()) return;
      const auto frame = streams_.take_next();
      if (!frame) return;
      connection_->send(*frame);
    }
  }

  Status take_frames() {
    while (wants_frames()) {
      auto frame = connection_->next();
      if (!frame) return failure(frame.error());
      if (!*frame) {
        pollfd readable{connection_->fd(), POLLIN, 0};
        if (poll(&readable, 1, 0) <= 0) return {};
        if (Status received = connection_->receive(); !received) return received;
        continue;
      }
      if (Status taken = take(**frame); !taken) return taken;
    }
    return {};
  }

  Status take(const Frame& frame) {
    if (frame.type == FrameType::kRefusal) {
      // A new attempt can succeed after these two reasons only.
      is_final_ = frame.position != ETIMEDOUT && frame.position != EAGAIN;
      return failure(request_.resumption ? static_cast<int>(frame.position) : ENOEXEC,
                     frame.payload);
    }
    if (frame.type == FrameType::kAttached && !is_attached_) return attach(frame);
    if (!is_attached_) return failure(EPROTO, "the job node sent frames before its answer");
    if (Status taken = streams_.take(frame); !taken) return taken;
    if (frame.type == FrameType::kOutput) output_.put(frame.payload);
    if (frame.type == FrameType::kErrors) errors_.put(frame.payload);
    return {};
  }

  Status attach(const Frame& frame) {
    const auto positions = parse_input_positions(frame.payload);
    if (!positions) return failure(positions.error());
    if (Status attached = streams_.attached(*positions); !attached) {
      is_final_ = true;
      return attached;
    }
    is_attached_ = true;
    if (has_told_) options_.tell("the connection to the job is there again");
    has_told_ = false;
    lost_since_.reset();
    attempt_interval_ = kBetweenAttempts;
    return {};
  }

  Status connect_again() {
    const auto now = Clock::now();
    if (has_end() || now < next_attempt_) return {};
    if (!lost_since_) lost_since_ = patient_since_ = now;
    if (now - patient_since_ >= request_.resumption->patience) {
      return failure(ETIMEDOUT, "the connection to the job is lost: " + last_failure_);
    }
    if (!has_told_ && options_.tell && now - *lost_since_ >= kQuietTime) {
      options_.tell("the connection to the job is lost; connecting again");
      has_told_ = true;
    }
    auto socket = options_.reconnect();
    next_attempt_ = Clock::now() + attempt_interval_;
    attempt_interval_ = std::min(2 * attempt_interval_, kAttemptIntervalMax);
    if (socket) {
      begin(std::move(*socket));
      return {};
    }
    last_failure_ = socket.error().message;
    if (socket.error().errno_value == EAGAIN) patient_since_ = Clock::now();
    return {};
  }

  const UniqueFd signals_;
  CommandRequest request_;
  const CommandClientOptions& options_;
  std::optional<FrameSocket> connection_;
  ClientResumption streams_;
  int input_;
  ByteOutlet output_, errors_;
  bool sends_ = true;         // whether the job node still accepts bytes
  bool is_attached_ = false;  // whether the job node has answered on this connection
  bool is_final_ = false;     // whether a new connection cannot help after the last error
  bool stands_still_ = false;
  Clock::time_point attach_deadline_;
  std::optional<Clock::time_point> lost_since_;
  Clock::time_point patient_since_, next_attempt_;
  milliseconds attempt_interval_ = kBetweenAttempts;
  std::string last_failure_ = "no answer";
  bool has_told_ = false;
};

}  // namespace

Result<CommandEnd> run_command_in_job_node(UniqueFd socket, CommandRequest request,
                                           const CommandClientOptions& options) {
  signal(SIGPIPE, SIG_IGN);
  auto signals = watch_signals();
  if (!signals) return failure(signals.error());
  return CommandClient(std::move(*signals), std::move(request), options).run(std::move(socket));
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
    if (!socket) return system_failure("create a socket for", "the job node " + host);
    // SO_SNDTIMEO limits the time of connect(2). connect_to_job_node() resets it for later calls.
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
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
