// A request to CRIU names the image directory and the work directory by descriptor numbers. CRIU
// looks these numbers up in the process that created CRIU's socket. Without a relay, runc is that
// process. With a relay, the child that will execute CRIU creates the socket: it first opens runc's
// directories itself, and puts its own descriptor numbers into the request.
#include "migration/relay/criu_relay.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/clock.h"
#include "base/ending_signals.h"
#include "base/own_path.h"
#include "base/spawn.h"
#include "daemon/command_line/output.h"
#include "migration/relay/connections_of_tree.h"
#include "migration/relay/container_fate.h"
#include "migration/relay/migration_hook.h"
#include "processes/frozen_group.h"
#include "restart_loader/criu/criu_library.h"
#include "restart_loader/criu/criu_process.h"
#include "restart_loader/criu/criu_rpc.h"
#include "restart_loader/criu/lazy_dump.h"
#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/criu/plain_tar.h"
#include "restart_loader/criu/relay_marks.h"
#include "restart_loader/criu/shell_script.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;

constexpr int kFailed = 1;
// How long the runtime may continue after CRIU has ended.
constexpr milliseconds kRuntimePatience{10'000};

int report_error(const std::string& sentence) {
  print_to(stderr, "ppmr relay: {}\n", sentence);
  return kFailed;
}

// Passes messages between CRIU and its client until CRIU has ended.
class Relay {
 public:
  // `runtime` is invalid if there is no container runtime.
  // `images`: the directory of CRIU's images.
  Relay(const CriuRelay& options, std::string images, ContainerPort port, UniqueFd runtime,
        UniqueFd criu, pid_t criu_pid)
      : options_(options),
        images_(std::move(images)),
        port_(std::move(port)),
        runtime_(std::move(runtime)),
        criu_(std::move(criu)),
        criu_pid_(criu_pid) {}
  int run(const CriuMessage& first);

 private:
  bool at_source() const { return options_.role == "source"; }
  bool may_continue_without_runtime() const { return decided_ || options_.alone; }
  bool pass_to_runtime(const CriuMessage& message);
  bool pass_to_criu(const CriuMessage& message) { return send_criu_message(criu_.get(), message); }
  bool answer_criu(bool go_on) { return pass_to_criu({criu_notification_answer(go_on), {}}); }
  bool ask_runtime(const CriuMessage& notification, CriuMessage& answer);
  bool on_notification(const CriuNotification& notification, const CriuMessage& message);
  bool hold_at_source(const CriuMessage& message);
  bool lock_network() const;
  bool cut_port() const;
  void attach_port() const;
  bool guard_pages(pid_t restored_root) const;
  bool hold_at_target(const CriuNotification& notification, const CriuMessage& message);
  bool hold(pid_t restored_root = 0) const {
    return MigrationHook{options_.state_directory,
                         options_.id,
                         options_.role,
                         options_.tree,
                         criu_pid_,
                         restored_root,
                         images_}
        .lets_criu_go_on();
  }
  bool leave(RelayMark mark, const std::string& text = "") const {
    return leave_mark(options_.work_directory, mark, text).has_value();
  }

  const CriuRelay& options_;
  const std::string images_;
  const ContainerPort port_;
  UniqueFd runtime_;  // the runtime's socket; invalid: the runtime has ended, or there is none
  const UniqueFd criu_;
  const pid_t criu_pid_;
  // Set when the record lets CRIU continue. From then on, no failure of the runtime may stop CRIU.
  bool decided_ = false;
  bool left_resumed_mark_ = true;  // false: the mark kResumed could not be written
};

int Relay::run(const CriuMessage& first) {
  ignore_sigpipe();
  if (!pass_to_criu(first)) return report_error("cannot send the request to CRIU: CRIU has ended");
  for (;;) {
    std::array<pollfd, 2> fds = {
        {{criu_.get(), POLLIN, 0}, {runtime_ ? runtime_.get() : -1, POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return report_error("poll failed");
    if (fds[0].revents != 0) {
      const auto message = receive_criu_message(criu_.get());
      if (!message) return 0;
      const auto notification = parse_criu_notification(message->bytes);
      if (!notification && left_resumed_mark_) (void)leave(RelayMark::kResponded);
      if (!notification) forget_network_lock(options_.work_directory);
      const bool passed = notification
                              ? on_notification(*notification, *message)
                              : pass_to_runtime(*message) || may_continue_without_runtime();
      if (!passed) return kFailed;  // the exit closes CRIU's socket, and CRIU then undoes its work
    } else if (fds[1].revents != 0) {
      const auto message = receive_criu_message(runtime_.get());
      if (message) {
        if (!pass_to_criu(*message)) return kFailed;
        continue;
      }
      if (!decided_) return report_error("the container runtime has ended");
      runtime_.reset();
    }
  }
}

bool Relay::pass_to_runtime(const CriuMessage& message) {
  if (runtime_ && !send_criu_message(runtime_.get(), message)) runtime_.reset();
  return static_cast<bool>(runtime_);
}

bool Relay::ask_runtime(const CriuMessage& notification, CriuMessage& answer) {
  if (!pass_to_runtime(notification)) return false;
  auto received = receive_criu_message(runtime_.get());
  if (!received) {
    runtime_.reset();
    return false;
  }
  answer = std::move(*received);
  return true;
}

// Returns false if CRIU must fail.
bool Relay::on_notification(const CriuNotification& notification, const CriuMessage& message) {
  if (at_source() && notification.script == "pre-dump") {
    note_freeze_began(options_.work_directory);
  }
  if (at_source() && notification.script == "network-lock" && !(lock_network() && cut_port())) {
    return answer_criu(false);
  }
  if (at_source() && notification.script == "post-dump") return hold_at_source(message);
  // CRIU reports network-unlock before a commit if the dump has failed, or if its migration was
  // aborted.
  if (at_source() && notification.script == "network-unlock" && !decided_) attach_port();
  if (!at_source() && notification.script == "post-restore") {
    return hold_at_target(notification, message);
  }
  // After CRIU's notification pre-resume the tree may run its own code.
  if (!at_source() && notification.script == "pre-resume")
    left_resumed_mark_ = leave(RelayMark::kResumed);
  if (!at_source() && notification.script == "post-resume") {
    (void)leave(RelayMark::kRunsSince, std::to_string(realtime_ns()));
  }
  CriuMessage answer;
  if (ask_runtime(message, answer)) return pass_to_criu(answer);
  return may_continue_without_runtime() && answer_criu(true);
}

bool Relay::lock_network() const {
  const Status noted = note_network_lock(options_.work_directory);
  if (!noted) (void)report_error(noted.error().message);
  return noted.has_value();
}

bool Relay::cut_port() const {
  if (!port_.exists()) return true;
  const Status cut = port_.cut();
  if (!cut) (void)report_error(cut.error().message);
  return cut.has_value();
}

void Relay::attach_port() const {
  if (!port_.exists()) return;
  if (Status attached = port_.attach(); !attached) (void)report_error(attached.error().message);
}

// Passes post-dump on to the runtime only after a commit, when the container no longer runs here.
bool Relay::hold_at_source(const CriuMessage& message) {
  if (!hold()) return answer_criu(false);
  decided_ = true;
  CriuMessage answer;
  (void)ask_runtime(message, answer);
  return answer_criu(true);
}

// Runs the guard as a program of its own, see pages_guard.h.
bool Relay::guard_pages(pid_t restored_root) const {
  if (!has_pages_server(options_.work_directory)) return true;
  const auto guard = spawn({.argv = {"ppmr", "guard-pages", "--work", options_.work_directory,
                                     "--root", std::to_string(restored_root)},
                            .program = "/proc/self/exe"});
  if (!guard) return report_error(guard.error().message), false;
  int status = 0;
  while (waitpid(*guard, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0;
}

// The runtime does its part of the restore before this node votes, because after the vote a failure
// of the runtime must not stop the restore.
bool Relay::hold_at_target(const CriuNotification& notification, const CriuMessage& message) {
  CriuMessage answer{criu_notification_answer(true), {}};
  if (!options_.alone && !ask_runtime(message, answer)) return false;
  if (!guard_pages(notification.pid) || !hold(notification.pid)) return answer_criu(false);
  // Without the mark kLetGo, another supervisor would assume that no task has run, and would
  // restore the tree again.
  if (Status left = leave_mark(options_.work_directory, RelayMark::kLetGo); !left) {
    (void)report_error(left.error().message);
    return answer_criu(false);
  }
  decided_ = true;
  // Attaches the container's port now: its sockets exist and the source's processes are dead, so no
  // kernel answers a TCP peer with a reset.
  attach_port();
  return pass_to_criu(answer);
}

// Opens the directory that the runtime has open as descriptor `number`. Returns -1 if `number` is
// negative.
Result<int> open_directory_of(pid_t runtime, int number) {
  if (number < 0) return -1;
  const std::string path = fmt::format("/proc/{}/fd/{}", runtime, number);
  // Opens without O_CLOEXEC, so that CRIU inherits the descriptor.
  const int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY);
  if (directory < 0) {
    return system_failure("open the container runtime's directory of images or work directory",
                          path);
  }
  return directory;
}

}  // namespace

int CriuRelay::become_criu() const { return report_error(execute_criu(criu, arguments).message); }

int CriuRelay::run() const {
  if (arguments.size() != 2 || arguments[0] != "swrk") return become_criu();
  const int socket = std::atoi(arguments[1].c_str());
  if (!alone) return run_for_runtime(socket);
  if (chdir(work_directory.c_str()) != 0) {
    return report_error(system_failure("change to", work_directory).value().message);
  }
  return start_relay(socket, std::nullopt, "images");  // a link in the work directory
}

int CriuRelay::run_for_runtime(int socket) const {
  // Runtimes also start CRIU for requests that need no relay: for CRIU's version and features.
  const std::string peeked = peek_criu_message(socket);
  if (peeked.empty()) return report_error("the container runtime sent no request");
  const auto request = parse_criu_request(peeked);
  if (!request) return report_error("cannot parse the request of the container runtime");
  const CriuRequest held = role == "source" ? CriuRequest::kDump : CriuRequest::kRestore;
  if (request->type != held) return become_criu();

  auto first = receive_criu_message(socket);
  if (!first) return report_error("the container runtime has ended");
  const auto images = open_directory_of(getppid(), request->images_directory);
  const auto work = open_directory_of(getppid(), request->work_directory);
  if (!images) return report_error(images.error().message);
  if (!work) return report_error(work.error().message);
  first->bytes = with_directories(std::move(first->bytes), *images, *work);
  if (role == "source") {
    const auto record = read_record();
    if (!record) return report_error(record.error().message);
    first->bytes = without_freezer(first->bytes);
    if (record->plan.moves_memory_apart()) first->bytes = with_lazy_pages(first->bytes);
  }
  if (role == "target") {
    (void)leave_mark(work_directory, RelayMark::kContainerCreated, read_boot_id());
  }
  return start_relay(socket, std::move(first), fmt::format("/proc/self/fd/{}", *images));
}

int CriuRelay::start_relay(int socket, std::optional<CriuMessage> first,
                           const std::string& images) const {
  // From here on, only the migration's record ends the relay and CRIU. A signal that ended CRIU in
  // the middle of a dump could end the dumped process, too.
  block_ending_signals();
  auto sockets = make_criu_sockets();
  if (!sockets) return report_error(sockets.error().message);
  // Forks twice, because the relay must not be a child of CRIU: CRIU waits for all its children at
  // the end.
  const pid_t criu_pid = getpid();
  const pid_t parent_pid = getppid();
  const pid_t middle = fork();
  if (middle < 0) return report_error("cannot start the relay");
  if (middle == 0) {
    const pid_t relay = fork();
    if (relay != 0) _exit(relay < 0 ? kFailed : 0);
    sockets->theirs.reset();
    UniqueFd client(socket);
    fcntl(socket, F_SETFD, FD_CLOEXEC);
    const ProcessIdentity runtime = identify(parent_pid).value_or(ProcessIdentity{});
    if (alone) {
      first = receive_criu_message(socket);  // null: the client has ended
      client.reset();
      if (!first) return 0;
    }
    auto port = alone ? Result<ContainerPort>{} : port_of_container();
    if (!port) return report_error(port.error().message);
    const int code = Relay(*this, images, std::move(*port), std::move(client),
                           std::move(sockets->ours), criu_pid)
                         .run(*first);
    if (role == "source") release_tree();
    if (role == "source" && !alone) settle_container(runtime);
    return code;
  }
  int status = 0;
  while (waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return report_error("cannot start the relay");
  if (dup2(sockets->theirs.get(), socket) < 0)
    return report_error("cannot pass the socket to CRIU");
  if (role == "source") {
    if (Status opened = open_ended_page_client(); !opened) {
      return report_error(opened.error().message);
    }
  }
  const auto record = read_record();
  if (role == "source" && record && dumps_connections(*record)) {
    if (Status noted = note_filter_rules(state_directory); !noted) {
      return report_error(noted.error().message);
    }
  }
  const bool has_index = role == "source" && record && record->plan.moves_memory_apart();
  // Without the library, a dump takes longer, and a restore misses shared memory and fails.
  const Status loaded =
      preload_criu_library(has_index ? PageList::kOfPpmr : PageList::kOfCriu, work_directory);
  if (!loaded) (void)report_error(loaded.error().message);
  if (Status put = put_plain_tar_in_path(work_directory); !put) {
    return report_error(put.error().message);
  }
  return become_criu();
}

Result<OwnershipRecord> CriuRelay::read_record() const {
  const auto store = RecordStore::open(state_directory);
  if (!store) return failure(store.error());
  auto record = store->read(id, role == "source" ? MigrationRole::kSource : MigrationRole::kTarget);
  if (record && tree >= record->trees.size()) {
    return failure(EINVAL, fmt::format("the record of migration {} has no tree {}", id, tree));
  }
  return record;
}

Result<ContainerPort> CriuRelay::port_of_container() const {
  const auto record = read_record();
  if (!record) return failure(record.error());
  return read_container_port(record->trees[tree].container.bundle);
}

// Releases the tree's connections and control groups. The coordinator does the same, but may be
// dead. If CRIU was killed, the tasks already run again.
void CriuRelay::release_tree() const {
  const auto record = read_record();
  if (!record) return;
  const Status released = release_connections(*record, record->trees[tree], work_directory);
  if (!released) (void)report_error(released.error().message);
  const bool may_be_in_groups = record->plan.may_run_before_memory();
  if (may_be_in_groups && is_over(record->state())) remove_frozen_groups(id);
}

// Removes or resumes the container. The coordinator does the same if it is alive.
void CriuRelay::settle_container(const ProcessIdentity& runtime) const {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, runtime.pid, 0)));
  if (pidfd && is_alive(runtime)) {
    pollfd end{pidfd.get(), POLLIN, 0};
    (void)poll(&end, 1, static_cast<int>(kRuntimePatience.count()));
  }
  const auto record = read_record();
  if (!record) return;
  // Settles the port even if runc has removed the container. runc does that when the container's
  // processes end after CRIU was killed.
  const auto port = port_of_container();
  if (port && port->exists() && record->state() == MigrationState::kAborted) {
    if (Status attached = port->attach(); !attached) (void)report_error(attached.error().message);
  }
  if (Status settled = settle_container_at_source(*record, record->trees[tree]); !settled) {
    (void)report_error(settled.error().message);
  }
}

Status write_relay_script(const RecordStore& store, const std::string& id, MigrationRole role,
                          size_t tree, const std::string& criu, const std::string& work_directory,
                          const std::string& configuration) {
  auto ppmr = own_path();
  if (!ppmr) return failure(ppmr.error());
  // CRIU reads this file in addition to the files that the runtime names.
  const std::string file = work_directory + "/criu.conf";
  std::string setting;
  if (!configuration.empty()) {
    if (!(std::ofstream(file) << configuration << std::flush)) return system_failure("write", file);
    setting = "CRIU_CONFIG_FILE=" + shell_quoted(file) + "\nexport CRIU_CONFIG_FILE\n";
  }
  auto written = write_script(
      work_directory + "/criu",
      fmt::format("#!/bin/sh\n{}exec {} migration-relay --state-dir {} --id {} --role {} --tree {} "
                  "--criu {} --work-dir "
                  "{} -- \"$@\"\n",
                  setting, shell_quoted(*ppmr), shell_quoted(store.directory()), id,
                  to_string(role), tree, shell_quoted(criu), shell_quoted(work_directory)));
  if (!written) return failure(written.error());
  return {};
}

}  // namespace ppmr
