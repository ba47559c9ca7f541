// `ppmr restart DIR`: waits for a checkpoint at the target, restores it with CRIU, and waits until
// all memory is in place. While it waits, `criu check` tests whether a lazy restore is possible.
// The check also makes CRIU cache the results of its kernel tests in /run/criu.kdat (if /run is a
// tmpfs). This saves the next two CRIU processes about 25 ms each.
#include "cli/restart_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "daemon/command_line/output.h"
#include "daemon/command_line/size_option.h"
#include "daemon/control/mount_daemon.h"
#include "daemon/control/requests.h"
#include "migration/relay/audit_events.h"
#include "preflight/policy/checkpoint_links.h"
#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/criu/restore.h"
#include "restart_loader/criu/work_directory.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

void print_notice(const std::string& sentence) { print_to(stderr, "ppmr restart: {}\n", sentence); }
void show_criu_line(const std::string& line) { print_to(stderr, "criu: {}\n", line); }

microseconds since(Clock::time_point start) {
  return std::chrono::duration_cast<microseconds>(Clock::now() - start);
}

// One run of the command. Its data members are the results of its steps.
class Restart {
 public:
  explicit Restart(const RestartCommand& command) : command_(command) {}
  int run();

 private:
  CommandResult<void> find();
  CommandResult<void> await_checkpoint();
  CommandResult<void> restore(WorkDirectory& work);
  CommandResult<void> remove_checkpoint();
  bool can_be_lazy();
  void audit_outcome(const std::string& outcome, const std::string& reason) const;
  void print_running() const;
  void print_end() const;

  const RestartCommand& command_;
  CheckpointPath checkpoint_;
  std::string criu_;
  std::string audit_file_;
  std::unique_ptr<CriuProcess> lazy_check_;
  Clock::time_point complete_at_;
  bool lazily_ = false;
  pid_t pid_ = -1;
  microseconds running_after_{0};
  microseconds pages_after_{0};
  bool removed_ = false;
};

CommandResult<void> Restart::find() {
  auto checkpoint = find_checkpoint(command_.path);
  if (!checkpoint) {
    CommandError error = checkpoint.error();
    if (auto found = find_mount(command_.path); !found && found.error().errno_value == ENODEV) {
      error.message += "; for images in an ordinary directory use criu restore";
    }
    return tl::unexpected(std::move(error));
  }
  checkpoint_ = std::move(*checkpoint);
  auto status = ask(checkpoint_.mount, to_request(request::Status{}));
  if (!status) return tl::unexpected(status.error());
  if (status->value("role", "") != "target") {
    return command_failure(ExitCode::kUsage, command_.path +
                                                 " is in a source mount: run restart on the target "
                                                 "node, with a path in the target mount");
  }
  audit_file_ = status->value("audit_file", "");
  if (auto inside = find_mount(command_.work_directory);
      !command_.work_directory.empty() && inside) {
    return command_failure(ExitCode::kUsage,
                           "work directory " + command_.work_directory +
                               " is in a ppmr mount, which is read-only: choose another one");
  }
  auto criu = find_criu();
  if (!criu) return command_failure(ExitCode::kFailure, criu.error().message);
  criu_ = *criu;
  return {};
}

CommandResult<void> Restart::await_checkpoint() {
  if (!command_.eager) {
    auto check = CriuProcess::start(
        {.argv = {criu_, "check", "--feature", "uffd-noncoop"}, .background = true});
    if (!check) return command_failure(ExitCode::kFailure, check.error().message);
    lazy_check_ = std::move(*check);
  }
  const auto notice = [&](const std::string& sentence) {
    if (!command_.json) print_notice(sentence);
  };
  const auto waited = wait_until_complete(checkpoint_, command_.timeout, notice);
  if (!waited) return tl::unexpected(waited.error());
  complete_at_ = Clock::now();
  return {};
}

bool Restart::can_be_lazy() {
  if (!lazy_check_) return false;
  while (!lazy_check_->ended()) {
    std::vector<pollfd> fds;
    lazy_check_->add_to(fds);
    poll(fds.data(), fds.size(), -1);
    lazy_check_->process();
  }
  if (lazy_check_->succeeded()) return true;
  const std::string why = lazy_check_->errors().summary();
  print_notice("restoring eagerly: a lazy restore is not possible on this node" +
               (why.empty() ? "" : " (" + why + ")"));
  return false;
}

CommandResult<void> Restart::restore(WorkDirectory& work) {
  if (Status safe = refuse_links(checkpoint_.mount.mountpoint + "/" + checkpoint_.name); !safe) {
    return command_failure(ExitCode::kRestoreFailed, command_.path + ": " + safe.error().message);
  }
  lazily_ = can_be_lazy();
  std::vector<std::string> options = command_.criu_options;
  if (lazily_) {
    auto script = write_guard_script(work.path());
    if (!script) return command_failure(ExitCode::kFailure, script.error().message);
    options.insert(options.end(), {"--action-script", *script});
  }
  auto restore = Restore::create({.criu = criu_,
                                  .images = checkpoint_.path,
                                  .work = work.path(),
                                  .lazily = lazily_,
                                  .criu_options = std::move(options),
                                  .show_line = show_criu_line,
                                  .show_notice = print_notice});
  if (!restore) return command_failure(ExitCode::kFailure, restore.error().message);
  const auto pid = (*restore)->run();
  if (!pid) {
    work.keep();
    const bool interrupted = pid.error().errno_value == EINTR;
    return command_failure(
        interrupted ? ExitCode::kInterrupted : ExitCode::kRestoreFailed,
        (interrupted ? pid.error().message
                     : "cannot restore " + command_.path + ": " + pid.error().message) +
            ". Logs: " + work.path());
  }
  pid_ = *pid;
  running_after_ = since(complete_at_);
  print_running();
  const auto tasks = tasks_of_tree(pid_).value_or(std::vector<ProcessIdentity>());
  if (const Status pages = (*restore)->finish_pages(); !pages) {
    work.keep();
    return command_failure(
        ExitCode::kPagesLost,
        fmt::format("MEMORY LOST: process {} {}. Cause: {}. The checkpoint still exists: run ppmr "
                    "restart again, for example with --eager. Logs: {}",
                    pid_, describe(end_lost_tree(work.path(), tasks)), pages.error().message,
                    work.path()));
  }
  pages_after_ = since(complete_at_);
  return {};
}

CommandResult<void> Restart::remove_checkpoint() {
  if (!command_.remove) return {};
  auto removed = ask_at_length(checkpoint_.mount, to_request(request::Remove{checkpoint_.name, ""}),
                               std::nullopt);
  if (!removed) {
    return command_failure(
        removed.error().exit_code,
        "the process runs, but ppmr cannot remove its checkpoint: " + removed.error().message);
  }
  removed_ = true;
  return {};
}

void Restart::audit_outcome(const std::string& outcome, const std::string& reason) const {
  json details = {
      {"outcome", outcome}, {"checkpoint", checkpoint_.name}, {"pid", pid_}, {"by_uid", getuid()}};
  if (const auto tasks = tasks_of_tree(pid_); pid_ > 0 && tasks) details["uids"] = users_of(*tasks);
  if (!reason.empty()) details["reason"] = reason;
  audit(audit_file_, "restart", details);
}

void Restart::print_running() const {
  if (command_.json) return;
  const std::string pid = pid_ > 0 ? fmt::format("pid {}", pid_) : "pid unknown";
  print_to(stdout, "running: {} after {}{}\n", pid, format_time(running_after_),
           lazily_ ? "" : ", all pages in place");
}

void Restart::print_end() const {
  if (!command_.json) {
    if (lazily_) print_to(stdout, "all pages in place after {}\n", format_time(pages_after_));
    if (removed_) print_to(stdout, "checkpoint removed\n");
    return;
  }
  print_whole(stdout, "{}\n",
              json_text({{"ok", true},
                         {"checkpoint", checkpoint_.name},
                         {"pid", pid_},
                         {"lazy", lazily_},
                         {"running_after_us", running_after_.count()},
                         {"all_pages_after_us", pages_after_.count()},
                         {"removed", removed_}}));
}

int Restart::run() {
  ignore_sigpipe();
  const auto failed = [&](const CommandError& error) {
    return report("restart", error, command_.json);
  };
  if (auto found = find(); !found) return failed(found.error());
  if (auto complete = await_checkpoint(); !complete) return failed(complete.error());
  auto work = WorkDirectory::create(command_.work_directory);
  if (!work) return failed({ExitCode::kFailure, work.error().message});
  if (auto restored = restore(*work); !restored) {
    audit_outcome(restored.error().exit_code == ExitCode::kPagesLost ? "lost" : "failed",
                  restored.error().message);
    return failed(restored.error());
  }
  audit_outcome("complete", "");
  const auto removed = remove_checkpoint();
  print_end();
  return removed ? to_int(ExitCode::kSuccess) : failed(removed.error());
}

}  // namespace

int RestartCommand::run() const { return Restart(*this).run(); }

}  // namespace ppmr
