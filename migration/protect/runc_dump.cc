#include "migration/protect/runc_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>

#include "base/exit_code.h"
#include "daemon/command_line/output.h"
#include "restart_loader/containers/runc.h"
#include "restart_loader/criu/criu_rpc.h"
#include "restart_loader/criu/shell_script.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kStartPatience{30'000};
constexpr milliseconds kEndPatience{10'000};
constexpr milliseconds kInterval{100};
constexpr const char* kSocket = "/runc.socket";
constexpr const char* kLog = "/runc.out";

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return system_failure("use as the socket of runc", path, ENAMETOOLONG);
  }
  strcpy(address.sun_path, path.c_str());
  return address;
}

Result<UniqueFd> listen_at(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return failure(address.error());
  unlink(path.c_str());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto* const at = reinterpret_cast<const sockaddr*>(&*address);
  if (!socket || bind(socket.get(), at, sizeof *address) != 0 || listen(socket.get(), 1) != 0) {
    return system_failure("listen for runc at", path);
  }
  return socket;
}

Result<UniqueFd> connect_to(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return failure(address.error());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto* const at = reinterpret_cast<const sockaddr*>(&*address);
  if (!socket || connect(socket.get(), at, sizeof *address) != 0) {
    return system_failure("connect to", path);
  }
  return socket;
}

struct CriuForRunc {
  std::string criu;
  std::string socket;
  std::vector<std::string> arguments;  // of CRIU: swrk NUMBER

  int run() const;

 private:
  int become_criu() const;
};

int CriuForRunc::become_criu() const {
  print_to(stderr, "{}\n", execute_criu(criu, arguments).message);
  return to_int(ExitCode::kFailure);
}

// runc also starts CRIU to learn its version and features. This process then becomes the real CRIU.
int CriuForRunc::run() const {
  const auto fail = [](const Error& error) {
    print_to(stderr, "ppmr criu-for-runc: {}\n", error.message);
    return to_int(ExitCode::kFailure);
  };
  if (arguments.size() != 2 || arguments[0] != "swrk") return become_criu();
  UniqueFd runc(std::atoi(arguments[1].c_str()));
  const auto peeked = peek_criu_message(runc.get());
  const auto request = parse_criu_request(peeked);
  if (!request || request->type != CriuRequest::kDump) {
    (void)runc.release();
    return become_criu();
  }
  auto message = receive_criu_message(runc.get());
  if (!message) return fail({EPIPE, "runc has ended"});
  auto starter = connect_to(socket);
  if (!starter) return fail(starter.error());
  message->files.clear();
  message->files.push_back(std::move(runc));
  if (!send_criu_message(starter->get(), *message)) return fail({EPIPE, "ppmr has ended"});
  message->files.clear();
  // runc waits for the end of its CRIU, which is this process. RuncDump closes the other end of the
  // socket when the dump is over.
  (void)receive_criu_message(starter->get());
  return to_int(ExitCode::kSuccess);
}

Result<UniqueFd> open_directory(const std::string& path) {
  UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return system_failure("open", path);
  return directory;
}

// The script names the program as /proc/PID/exe, which is still this version after an upgrade of
// ppmr.
Status write_criu_script(const RuncDumpOptions& options, const std::string& socket) {
  const auto written = write_script(
      options.work + "/criu",
      fmt::format("#!/bin/sh\nexec /proc/{}/exe criu-for-runc --criu {} --socket {} -- \"$@\"\n",
                  getpid(), shell_quoted(options.criu), shell_quoted(socket)));
  return written ? Status{} : failure(written.error());
}

}  // namespace

void add_criu_for_runc_command(CLI::App& app, int& exit_code) {
  CLI::App& sub = *app.add_subcommand("criu-for-runc")->group("");  // not in --help
  auto command = std::make_shared<CriuForRunc>();
  sub.add_option("--criu", command->criu)->required();
  sub.add_option("--socket", command->socket)->required();
  sub.add_option("arguments", command->arguments)->take_all();
  sub.callback([command, &exit_code] { exit_code = command->run(); });
}

Result<RuncDump> RuncDump::start(const RuncDumpOptions& options) {
  const std::string socket = options.work + kSocket;
  const auto listener = listen_at(socket);
  if (!listener) return failure(listener.error());
  if (Status written = write_criu_script(options, socket); !written) {
    return failure(written.error());
  }
  auto runc = Runc::find();
  if (!runc) return failure(runc.error());
  const auto passed = runc_options(options.criu_options);
  if (!passed) return failure(passed.error());
  std::vector<std::string> words = {"checkpoint",   "--leave-running", "--image-path",
                                    options.images, "--work-path",     options.work};
  words.insert(words.end(), passed->begin(), passed->end());
  words.push_back(options.container);
  RuncDump dump;
  auto process = CriuProcess::start({.argv = runc->command(options.work, words),
                                     .log_file = options.work + kLog,
                                     .background = true});
  if (!process) return failure(process.error());
  dump.runc_ = std::move(*process);
  auto message = dump.await_message(listener->get(), options.work + kLog);
  if (!message) return failure(message.error());
  if (Status taken = dump.take(std::move(*message), options); !taken) {
    return failure(taken.error());
  }
  return dump;
}

Result<CriuMessage> RuncDump::await_message(int listener, const std::string& log) {
  const auto deadline = Clock::now() + kStartPatience;
  for (;;) {
    std::vector<pollfd> fds = {{starter_ ? starter_.get() : listener, POLLIN, 0}};
    runc_->add_to(fds);
    poll(fds.data(), fds.size(), static_cast<int>(kInterval.count()));
    runc_->process();
    if (fds[0].revents != 0 && !starter_) {
      starter_ = UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    } else if (fds[0].revents != 0) {
      auto message = receive_criu_message(starter_.get());
      if (message) return std::move(*message);
      starter_.reset();
    }
    if (runc_->ended()) return failure(explain_dump(*runc_, "runc checkpoint", log));
    if (Clock::now() > deadline) {
      return failure(ETIMEDOUT, "runc checkpoint does not start its dump. Log: " + log);
    }
  }
}

// Removes the freezer from the request, so that CRIU stops the processes one by one. If CRIU then
// dies, no control group stays frozen.
Status RuncDump::take(CriuMessage message, const RuncDumpOptions& options) {
  if (message.files.size() != 1) {
    return failure(EPROTO, "take over the dump of runc checkpoint: its request has no socket");
  }
  runc_socket_ = std::move(message.files.front());
  auto images = open_directory(options.images);
  if (!images) return failure(images.error());
  auto work = open_directory(options.work);
  if (!work) return failure(work.error());
  images_ = std::move(*images);
  work_ = std::move(*work);
  request_ = with_lazy_pages(
      without_freezer(with_directories(std::move(message.bytes), images_.get(), work_.get())));
  return {};
}

void RuncDump::finish(const std::string& response) {
  (void)send_criu_message(runc_socket_.get(), {response, {}});
  runc_socket_.reset();
  starter_.reset();
  (void)runc_->await_end(kEndPatience);
}

}  // namespace ppmr
