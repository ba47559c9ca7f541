// CRIU opens its directories by the numbers that they have in the process which made its socket:
// the runtime's, normally. Ours is made here, so the directories are opened here, too, and the
// request is given their numbers.
#include "restart_loader/criu_relay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include "restart_loader/container_fate.h"
#include "restart_loader/criu_rpc.h"
#include "restart_loader/migration_hook.h"
#include "restart_loader/node_facts.h"
#include "restart_loader/pages_guard.h"
#include "restart_loader/shell_script.h"

namespace ppmr {
namespace {

constexpr size_t kMessageMaxBytes = 4 << 20;
constexpr size_t kPassedFilesMax = 16;  // with one message: the master side of a terminal
constexpr int kFailed = 1;
// How long the runtime may take to end when CRIU has.
constexpr std::chrono::seconds kRuntimePatience{10};
constexpr std::chrono::milliseconds kRuntimeLook{20};
constexpr const char* kMadeFile = "/container-made";

int complain(const std::string& sentence) {
  fmt::print(stderr, "ppmr relay: {}\n", sentence);
  return kFailed;
}

struct Message {
  std::string bytes;
  std::vector<UniqueFd> files;
};

// nullopt: the other side has closed, or cannot be heard.
std::optional<Message> receive(int socket) {
  ssize_t size = 0;
  do {
    size = recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0 || static_cast<size_t>(size) > kMessageMaxBytes) return std::nullopt;
  Message message;
  message.bytes.resize(static_cast<size_t>(size));
  iovec part{message.bytes.data(), message.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kPassedFilesMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != size) return std::nullopt;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const int* numbers = reinterpret_cast<const int*>(CMSG_DATA(item));
    for (size_t i = 0; i < count; ++i) message.files.emplace_back(numbers[i]);
  }
  return message;
}

bool send(int socket, const Message& message) {
  iovec part{const_cast<char*>(message.bytes.data()), message.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kPassedFilesMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!message.files.empty()) {
    const size_t count = std::min(message.files.size(), kPassedFilesMax);
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(count * sizeof(int));
    int* numbers = reinterpret_cast<int*>(CMSG_DATA(item));
    for (size_t i = 0; i < count; ++i) numbers[i] = message.files[i].get();
  }
  ssize_t size = 0;
  do {
    size = sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (size < 0 && errno == EINTR);
  return size == static_cast<ssize_t>(message.bytes.size());
}

// Between the runtime and CRIU until CRIU has ended.
class Relay {
 public:
  Relay(const CriuRelay& options, UniqueFd runtime, UniqueFd criu, pid_t criu_pid)
      : options_(options),
        runtime_(std::move(runtime)),
        criu_(std::move(criu)),
        criu_pid_(criu_pid) {}
  int run(Message first);

 private:
  bool at_source() const { return options_.role == "source"; }
  bool pass_to_runtime(const Message& message);
  bool pass_to_criu(const Message& message) { return send(criu_.get(), message); }
  bool answer_criu(bool go_on) { return pass_to_criu({criu_notification_answer(go_on), {}}); }
  bool ask_runtime(const Message& notification, Message& answer);
  bool notified(const CriuNotification& notification, const Message& message);
  bool hold_at_source(const Message& message);
  bool guard_pages() const;
  bool hold_at_target(const CriuNotification& notification, const Message& message);
  int hold() const {
    return MigrationHook{options_.state_directory, options_.id, options_.role, options_.tree,
                         criu_pid_}
        .run();
  }
  void leave(const std::string& file) const { std::ofstream(options_.work_directory + file); }

  const CriuRelay& options_;
  UniqueFd runtime_;  // reset once the runtime has gone
  const UniqueFd criu_;
  const pid_t criu_pid_;
  // The record of this node says so: from now on nothing that the runtime does may stop CRIU.
  bool decided_ = false;
};

int Relay::run(Message first) {
  std::signal(SIGPIPE, SIG_IGN);  // whom we tell of errors may be dead
  if (!pass_to_criu(first)) return complain("CRIU does not take the request of the runtime");
  for (;;) {
    std::array<pollfd, 2> fds = {
        {{criu_.get(), POLLIN, 0}, {runtime_ ? runtime_.get() : -1, POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return complain("poll failed");
    if (fds[0].revents != 0) {
      const auto message = receive(criu_.get());
      if (!message) return 0;
      const auto notification = parse_criu_notification(message->bytes);
      const bool passed =
          notification ? notified(*notification, *message) : pass_to_runtime(*message) || decided_;
      if (!passed) return kFailed;  // CRIU notices, and undoes what it has done
    } else if (fds[1].revents != 0) {
      const auto message = receive(runtime_.get());
      if (message) {
        if (!pass_to_criu(*message)) return kFailed;
        continue;
      }
      if (!decided_) return complain("the container runtime has gone");
      runtime_.reset();
    }
  }
}

bool Relay::pass_to_runtime(const Message& message) {
  if (runtime_ && !send(runtime_.get(), message)) runtime_.reset();
  return static_cast<bool>(runtime_);
}

bool Relay::ask_runtime(const Message& notification, Message& answer) {
  if (!pass_to_runtime(notification)) return false;
  auto received = receive(runtime_.get());
  if (!received) {
    runtime_.reset();
    return false;
  }
  answer = std::move(*received);
  return true;
}

// False: CRIU shall fail.
bool Relay::notified(const CriuNotification& notification, const Message& message) {
  if (at_source() && notification.script == "pre-dump") {
    note_freeze_begins(options_.work_directory);
  }
  if (at_source() && notification.script == "post-dump") return hold_at_source(message);
  if (!at_source() && notification.script == "post-restore") {
    return hold_at_target(notification, message);
  }
  // From here on the container may run its own code.
  if (!at_source() && notification.script == "pre-resume") leave("/resumed");
  Message answer;
  if (ask_runtime(message, answer)) return pass_to_criu(answer);
  return decided_ && answer_criu(true);
}

// The runtime hears that its container was dumped only when it is not to run here any more.
bool Relay::hold_at_source(const Message& message) {
  if (hold() != 0) return answer_criu(false);
  decided_ = true;
  Message answer;
  (void)ask_runtime(message, answer);
  return answer_criu(true);
}

// In a process of its own, which closes all that we have open.
bool Relay::guard_pages() const {
  const pid_t guard = fork();
  if (guard < 0) return false;
  if (guard == 0) _exit(PagesGuard{options_.work_directory}.run());
  int status = 0;
  while (waitpid(guard, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0;
}

// Before the vote, what the runtime has to do with a restored container, so that nothing of it can
// fail afterwards.
bool Relay::hold_at_target(const CriuNotification& notification, const Message& message) {
  Message answer;
  if (!ask_runtime(message, answer)) return false;
  setenv("CRTOOLS_INIT_PID", std::to_string(notification.pid).c_str(), 1);
  if (!guard_pages() || hold() != 0) return answer_criu(false);
  decided_ = true;
  return pass_to_criu(answer);
}

// The directory that the runtime has open under this number, opened by us; -1 stays -1.
Result<int> open_directory_of(pid_t runtime, int number) {
  if (number < 0) return -1;
  const std::string path = fmt::format("/proc/{}/fd/{}", runtime, number);
  const int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY);  // for CRIU to inherit
  if (directory < 0) return system_failure("open the directory of the container runtime", path);
  return directory;
}

}  // namespace

int CriuRelay::run() const {
  std::vector<char*> argv = {const_cast<char*>(criu.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const auto become_criu = [&] {
    execv(criu.c_str(), argv.data());
    return complain(system_failure("run", criu).value().message);
  };
  if (arguments.size() != 2 || arguments[0] != "swrk") return become_criu();
  const int number = std::atoi(arguments[1].c_str());
  // Runtimes ask this and that before: for the version, for features.
  std::string peeked(kMessageMaxBytes, '\0');
  const ssize_t size = recv(number, peeked.data(), peeked.size(), MSG_PEEK);
  if (size <= 0) return complain("the container runtime asks for nothing");
  peeked.resize(static_cast<size_t>(size));
  const auto request = parse_criu_request(peeked);
  if (!request) return complain("the container runtime speaks another protocol");
  const CriuRequest wanted = role == "source" ? CriuRequest::kDump : CriuRequest::kRestore;
  if (request->type != wanted) return become_criu();

  auto first = receive(number);
  if (!first) return complain("the container runtime has gone");
  const auto images = open_directory_of(getppid(), request->images_directory);
  const auto work = open_directory_of(getppid(), request->work_directory);
  if (!images) return complain(images.error().message);
  if (!work) return complain(work.error().message);
  first->bytes = with_directories(std::move(first->bytes), *images, *work);
  if (role == "target") std::ofstream(work_directory + kMadeFile) << read_boot_id();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return complain("cannot make a socket for CRIU");
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  // No child of CRIU's: at its end CRIU waits for all that it has.
  const pid_t criu_pid = getpid();
  const pid_t runtime_pid = getppid();
  const pid_t between = fork();
  if (between < 0) return complain("cannot start the relay");
  if (between == 0) {
    const pid_t relay = fork();
    if (relay != 0) _exit(relay < 0 ? kFailed : 0);
    theirs.reset();
    fcntl(number, F_SETFD, FD_CLOEXEC);
    const ProcessIdentity runtime = identify(runtime_pid).value_or(ProcessIdentity{});
    const int code =
        Relay(*this, UniqueFd(number), std::move(ours), criu_pid).run(std::move(*first));
    if (role == "source") settle_after(runtime);
    return code;
  }
  int status = 0;
  while (waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return complain("cannot start the relay");
  if (dup2(theirs.get(), number) < 0) return complain("cannot give CRIU its socket");
  return become_criu();
}

// The coordinator does the same, if it lives.
void CriuRelay::settle_after(const ProcessIdentity& runtime) const {
  const auto deadline = std::chrono::steady_clock::now() + kRuntimePatience;
  while (is_alive(runtime) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kRuntimeLook);
  }
  const auto store = RecordStore::open(state_directory);
  const auto record = store ? store->read(id, MigrationRole::kSource)
                            : Result<OwnershipRecord>(failure(store.error()));
  if (!record || tree >= record->trees.size()) return;
  if (Status settled = settle_container_at_source(*record, record->trees[tree]); !settled) {
    (void)complain(settled.error().message);
  }
}

Status write_relay_script(const RecordStore& store, const std::string& id, MigrationRole role,
                          size_t tree, const std::string& criu, const std::string& work_directory) {
  auto ppmr = own_path();
  if (!ppmr) return failure(ppmr.error());
  auto written = write_script(
      work_directory + "/criu",
      fmt::format("#!/bin/sh\nexec {} migration-relay --state-dir {} --id {} --role {} --tree {} "
                  "--criu {} --work-dir "
                  "{} -- \"$@\"\n",
                  shell_quoted(*ppmr), shell_quoted(store.directory()), id, to_string(role), tree,
                  shell_quoted(criu), shell_quoted(work_directory)));
  if (!written) return failure(written.error());
  return {};
}

bool container_was_made(const std::string& work_directory) {
  std::ifstream file(work_directory + kMadeFile);
  std::string boot;
  return std::getline(file, boot) && read_boot_id().starts_with(boot);
}

void forget_that_container_was_made(const std::string& work_directory) {
  unlink((work_directory + kMadeFile).c_str());
}

}  // namespace ppmr
