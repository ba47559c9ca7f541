#include "daemon/privilege/helper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/descriptor_limit.h"
#include "base/ending_signals.h"
#include "base/exit_code.h"
#include "base/leave_terminal.h"
#include "base/open_file.h"
#include "base/spawn.h"
#include "base/unnamed_file.h"
#include "daemon/control/endpoint_file.h"
#include "mount/caller.h"
#include "rdma_stream/connection/tcp_connection.h"

namespace ppmr {
namespace {

// Each connected coordinator has one agent, and keeps it as long as its migration is open.
constexpr size_t kAgentsMax = 256;
constexpr ptrdiff_t kAgentsOfPeerMax = 64;  // so one peer cannot use up all agents
constexpr int kAgentsSocket = 3;            // the descriptor's number in an agent
// The time between two runs of the settler. After both nodes are up again, an open migration waits
// at most for this long.
constexpr std::chrono::milliseconds kSettleInterval{20'000};
constexpr std::chrono::milliseconds kForever{-1};

bool is_printable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != 0x7f;
  });
}

}  // namespace

int HelperProcess::run() {
  // A terminal sends these signals to the daemon, too, which needs the helper until it has ended.
  ignore_ending_signals();
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_DUMPABLE, 0);
  raise_descriptor_limit();
  const UniqueFd socket(options_.fd);
  ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &children, nullptr);
  const UniqueFd ended(::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!ended) return to_int(ExitCode::kFailure);
  for (;;) {
    start_epoch_writer_when_due();
    pollfd waits[] = {{socket.get(), POLLIN, 0}, {ended.get(), POLLIN, 0}};
    const auto wait = mounted_once_ && !options_.settle.empty() ? kSettleInterval : kForever;
    if (::poll(waits, 2, static_cast<int>(wait.count())) < 0) continue;  // EINTR
    settle_when_due();
    if (waits[1].revents != 0) {
      signalfd_siginfo info;
      (void)!::read(ended.get(), &info, sizeof(info));
      reap_children();
    }
    if (waits[0].revents != 0 && !serve_one()) return to_int(ExitCode::kSuccess);
  }
}

// Returns false when the daemon has ended.
bool HelperProcess::serve_one() {
  // The helper needs no descriptors, so the kernel closes descriptors that the daemon passes.
  const auto request = receive_message<HelperRequest>(options_.fd, "the daemon");
  if (!request && request.error().errno_value != EPROTO) return false;
  const bool whole = request && request->text_bytes <= sizeof(request->text);
  auto outcome = whole ? perform(*request) : failure(EPROTO, "malformed request to the helper");
  HelperReply reply;
  std::vector<UniqueFd> descriptors;
  if (outcome) {
    reply.number = outcome->number;
    descriptors = std::move(outcome->descriptors);
  } else {
    reply.set(outcome.error());
  }
  // The daemon sends the next request after this reply, so there is always room.
  (void)send_message(options_.fd, reply, "the daemon", descriptors, MSG_DONTWAIT);
  return true;
}

Result<HelperProcess::Outcome> HelperProcess::perform(const HelperRequest& request) {
  switch (request.operation) {
    case HelperOperation::kMount:
      return mount();
    case HelperOperation::kUnmount:
      return unmount();
    case HelperOperation::kStartAgent:
      return start_agent(std::string(request.text, request.text_bytes));
    case HelperOperation::kCreateSpillFile:
      return create_spill_file();
    case HelperOperation::kOpenAgain:
      return open_again(request.number);
    case HelperOperation::kRemoveControlSocket:
      remove_endpoint(options_.mount.source_label);
      ::unlink(options_.mount.source_label.c_str());
      return Outcome{};
    case HelperOperation::kIsDying:
      return Outcome{.number = request.number > 0 && caller_is_dying(request.number)};
    case HelperOperation::kDial:
      return dial(request.number);
    case HelperOperation::kOpenKeptDirectory:
    case HelperOperation::kCreateKept:
    case HelperOperation::kPublishKept:
    case HelperOperation::kOpenKept:
    case HelperOperation::kRemoveKept:
      return use_kept_file(request);
  }
  return failure(EOPNOTSUPP, "unknown request to the privileged helper");
}

Result<HelperProcess::Outcome> HelperProcess::mount() {
  if (mounted_once_) return failure(EPERM, "the privileged helper mounts only once");
  auto channel = mount_fuse(options_.mount);
  if (!channel) return failure(channel.error());
  mounted_once_ = true;
  channel_ = std::move(*channel);
  if (options_.background) leave_terminal();
  Outcome outcome;
  outcome.descriptors.push_back(std::move(channel_.device));
  return outcome;
}

Result<HelperProcess::Outcome> HelperProcess::unmount() {
  if (!channel_.unmount) return failure(EPERM, "the privileged helper has no mount to remove");
  std::exchange(channel_.unmount, nullptr)();
  return Outcome{};
}

Result<HelperProcess::Outcome> HelperProcess::start_agent(const std::string& peer) {
  if (options_.agent.empty()) {
    return failure(EPERM, "start an agent: the target was started without --allow-restart");
  }
  if (!is_printable(peer)) {
    return failure(EINVAL, "start an agent: the peer's name has control characters");
  }
  reap_children();
  if (agents_.size() >= kAgentsMax) {
    return failure(EAGAIN, "start an agent: " + std::to_string(kAgentsMax) +
                               " are running already; try again later");
  }
  const auto of_peer = [&](const auto& agent) { return agent.second == peer; };
  if (std::count_if(agents_.begin(), agents_.end(), of_peer) >= kAgentsOfPeerMax) {
    return failure(EAGAIN, "start an agent: " + peer + " has " + std::to_string(kAgentsOfPeerMax) +
                               " migrations open; try again later");
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return system_failure("create a socket pair for", "an agent");
  }
  Outcome outcome;
  outcome.descriptors.emplace_back(ends[0]);
  const UniqueFd theirs(ends[1]);
  std::vector<std::string> words = {"ppmr"};
  words.insert(words.end(), options_.agent.begin(), options_.agent.end());
  words.push_back("--fd=" + std::to_string(kAgentsSocket));
  words.push_back("--peer=" + peer);
  auto pid = spawn({.argv = std::move(words),
                    .program = "/proc/self/exe",
                    .files = {{theirs.get(), kAgentsSocket}}});
  if (!pid) return failure(pid.error());
  agents_.emplace(*pid, peer);
  return outcome;
}

// Starts the settler when the next run is due and none is at work. The settler is a separate
// program, because the helper must not read records or bytes of a peer.
void HelperProcess::settle_when_due() {
  const auto now = std::chrono::steady_clock::now();
  const bool due = settled_at_ == decltype(settled_at_){} || now - settled_at_ >= kSettleInterval;
  if (options_.settle.empty() || !mounted_once_ || !due || settler_ != 0) return;
  settled_at_ = now;
  std::vector<std::string> words = {"ppmr"};
  words.insert(words.end(), options_.settle.begin(), options_.settle.end());
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  auto pid = spawn(
      {.argv = std::move(words),
       .program = "/proc/self/exe",
       .files = {
           {null.get(), STDIN_FILENO}, {null.get(), STDOUT_FILENO}, {null.get(), STDERR_FILENO}}});
  if (pid) settler_ = *pid;
}

// Starts the epoch writer unless it is at work. It ends with this process. If it ends before, this
// process starts another one in the next interval.
void HelperProcess::start_epoch_writer_when_due() {
  const auto now = std::chrono::steady_clock::now();
  const bool is_due =
      epoch_writer_at_ == decltype(epoch_writer_at_){} || now - epoch_writer_at_ >= kSettleInterval;
  if (options_.epochs.empty() || !mounted_once_ || epoch_writer_ != 0 || !is_due) return;
  epoch_writer_at_ = now;
  std::vector<std::string> words = {"ppmr"};
  words.insert(words.end(), options_.epochs.begin(), options_.epochs.end());
  words.push_back("--parent=" + std::to_string(::getpid()));
  auto pid = spawn({.argv = std::move(words), .program = "/proc/self/exe", .files = {}});
  if (pid) epoch_writer_ = *pid;
}

Result<HelperProcess::Outcome> HelperProcess::create_spill_file() {
  if (options_.spill_directory.empty()) {
    return failure(EPERM, "create a spill file: the target was started without --spill-dir");
  }
  auto file = create_unnamed_file(options_.spill_directory);
  if (!file) return failure(file.error());
  Outcome outcome;
  outcome.descriptors.push_back(std::move(file->file));
  outcome.descriptors.push_back(std::move(file->reading));
  return outcome;
}

Result<HelperProcess::Outcome> HelperProcess::use_kept_file(const HelperRequest& request) {
  const auto opened = [&]() -> Result<UniqueFd> {
    switch (request.operation) {
      case HelperOperation::kCreateKept:
        return kept_files_.create_kept(request.number);
      case HelperOperation::kPublishKept:
        return kept_files_.publish_kept(request.number);
      case HelperOperation::kOpenKept:
        return kept_files_.open_kept(request.number);
      case HelperOperation::kRemoveKept:
        return kept_files_.remove_kept(request.number);
      default:
        return kept_files_.open_kept_directory();
    }
  };
  auto file = opened();
  if (!file) return failure(file.error());
  Outcome outcome;
  outcome.descriptors.push_back(std::move(*file));
  return outcome;
}

Result<HelperProcess::Outcome> HelperProcess::open_again(int32_t number) {
  const auto index = static_cast<size_t>(number);
  const bool appends = index == options_.read_files.size() && !options_.append_file.empty();
  if (number < 0 || (index >= options_.read_files.size() && !appends)) {
    return failure(
        EPERM, "open file " + std::to_string(number) + ": the daemon has no file with this number");
  }
  const std::string& path = appends ? options_.append_file : options_.read_files[index];
  auto file = appends ? open_to_append(path) : open_to_read(path);
  if (!file) return failure(file.error());
  Outcome outcome;
  outcome.descriptors.push_back(std::move(*file));
  return outcome;
}

Result<HelperProcess::Outcome> HelperProcess::dial(int32_t number) {
  if (options_.connect_to.empty()) return failure(EPERM, "connect: this daemon has no target");
  if (number < 0) return failure(EINVAL, "connect: the number of the address is negative");
  const TcpReach reach = options_.loopback_only ? TcpReach::kLoopback : TcpReach::kAnywhere;
  auto socket = begin_to_connect(options_.connect_to, reach, static_cast<size_t>(number));
  if (!socket) return failure(socket.error());
  if (options_.near_target) use_cubic(socket->get());
  Outcome outcome;
  outcome.descriptors.push_back(std::move(*socket));
  return outcome;
}

void HelperProcess::reap_children() {
  for (pid_t pid; (pid = ::waitpid(-1, nullptr, WNOHANG)) > 0;) {
    agents_.erase(pid);
    if (pid == settler_) settler_ = 0;
    if (pid == epoch_writer_) epoch_writer_ = 0;
  }
}

void add_privileged_helper_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<HelperProcess::Options>();
  CLI::App& sub = *app.add_subcommand("privileged-helper", "")->group("");
  sub.add_option("--fd", options->fd)->required();
  sub.add_option("--mountpoint", options->mount.mountpoint)->required();
  sub.add_option("--control-socket", options->mount.source_label)->required();
  sub.add_flag("--allow-other", options->mount.allow_other);
  sub.add_option("--spill-dir", options->spill_directory);
  sub.add_option("--keep-dir", options->keep_directory);
  sub.add_option("--read-file", options->read_files)->allow_extra_args(false)->take_all();
  sub.add_option("--append-file", options->append_file);
  sub.add_option("--connect-to", options->connect_to);
  sub.add_option("--settle", options->settle)->allow_extra_args(false)->take_all();
  sub.add_option("--epochs", options->epochs)->allow_extra_args(false)->take_all();
  sub.add_flag("--loopback-only", options->loopback_only);
  sub.add_flag("--near-target", options->near_target);
  sub.add_flag("--background", options->background);
  sub.add_option("AGENT", options->agent)->take_all();
  sub.callback([options, &exit_code] { exit_code = HelperProcess(*options).run(); });
}

}  // namespace ppmr
