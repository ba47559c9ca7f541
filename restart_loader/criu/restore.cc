// Starts the pager before `criu restore`, because CRIU connects to the pager's socket and fails if
// the socket does not exist yet. The pager reports on descriptor 3 that it listens.
#include "restart_loader/criu/restore.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "processes/memory/page_index.h"
#include "restart_loader/criu/criu_options.h"
#include "restart_loader/criu/pages_guard.h"
#include "restart_loader/criu/relay_marks.h"

namespace ppmr {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kEndsTogether{500};
constexpr milliseconds kLookInterval{20};
constexpr milliseconds kCancelInterval{1000};

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

}  // namespace

Result<std::unique_ptr<Restore>> Restore::create(RestoreOptions options) {
  auto restore = std::unique_ptr<Restore>(new Restore(std::move(options)));
  const std::string& work = restore->options_.work;
  const auto in_work = [&](const std::string& file) {
    return file.starts_with('/') ? file : work + "/" + file;
  };
  const CriuOptions given = read_criu_options(restore->options_.criu_options);
  restore->pid_file_ = in_work(given.pid_file.value_or("pidfile"));
  if (given.log_file) restore->users_log_ = in_work(*given.log_file);
  if (restore->options_.start) restore->users_log_ = work + "/restore.log";
  // Removes the files of an earlier restore with the same work directory.
  unlink((work + "/lazy-pages.socket").c_str());
  unlink(restore->pid_file_.c_str());
  unlink((work + kMemoryCompleteFile).c_str());
  unlink((work + kSharedImages).c_str());
  forget_pages_server(work);
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  restore->signals_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!restore->signals_) return system_failure("create a signalfd for the restore in", work);
  return restore;
}

Restore::~Restore() {
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// CRIU does not know the memory that the page index lists, and would restore zeros.
Status Restore::check_memory() const {
  const std::string index = options_.images + "/" + kPageIndexFile;
  if (!options_.memory.empty() || access(index.c_str(), F_OK) != 0) return {};
  return failure(EINVAL, fmt::format("the images in {} lack the memory of their processes, which "
                                     "is in another checkpoint: the images are a part of a "
                                     "migration, and only the migration can restart them",
                                     options_.images));
}

Result<pid_t> Restore::run() {
  if (Status complete = check_memory(); !complete) return failure(complete.error());
  if (options_.lazily) {
    if (Status ready = start_pager(); !ready) return failure(ready.error());
  }
  if (Status restored = start_restore(); !restored) {
    if (restore_) restore_->end();
    // Without the pager, a running tree would lose its memory.
    if (pager_) was_let_go(options_.work) ? pager_->leave() : pager_->end();
    return failure(restored.error());
  }
  running_ = true;
  return read_pid();
}

Status Restore::start_pager() {
  std::vector<std::string> argv = options_.pager;
  if (argv.empty()) argv = {"/proc/self/exe", "serve-pages"};
  argv.insert(argv.end(),
              {"--images", options_.images, "--work", options_.work, "--ready-fd", "3"});
  if (!options_.memory.empty()) {
    const std::string complete = options_.work + kMemoryCompleteFile;
    argv.insert(argv.end(), {"--memory", options_.memory, "--complete", complete});
    if (options_.post_copy) argv.push_back("--fill-early");
  }
  if (!options_.bundle.empty()) argv.insert(argv.end(), {"--bundle", options_.bundle});
  if (options_.any_file_sizes) argv.push_back("--any-file-sizes");
  if (options_.leaves_locks) argv.push_back("--leave-locks");
  if (options_.leaves_process_locks) argv.push_back("--leave-process-locks");
  const bool changes_images =
      options_.any_file_sizes || options_.leaves_locks || options_.leaves_process_locks;
  if (!options_.memory.empty() || !options_.bundle.empty() || changes_images) {
    argv.insert(argv.end(), {"--shared-images", options_.work + kSharedImages});
  }
  auto started = CriuProcess::start({.argv = std::move(argv),
                                     .log_file = options_.work + "/pager.log",
                                     .show = options_.show_line,
                                     .status_fd = true,
                                     .background = true});
  if (!started) return failure(started.error());
  pager_ = std::move(*started);
  const Status waited = serve_until([&] { return pager_->ready() || pager_->ended(); });
  if (!waited) {
    pager_->end();
    return waited;
  }
  if (!pager_->ready()) return failure(explain("the pager", *pager_));
  return note_pages_server(options_.work, pager_->pid());
}

std::string Restore::images() const {
  const std::string shared = options_.work + kSharedImages;
  return access(shared.c_str(), F_OK) == 0 ? shared : options_.images;
}

Result<std::unique_ptr<CriuProcess>> Restore::start_criu() const {
  const CriuOptions given = read_criu_options(options_.criu_options);
  std::vector<std::string> argv = {options_.criu, "restore",           "-D", images(), "-W",
                                   options_.work, "--restore-detached"};
  if (options_.lazily) argv.push_back("--lazy-pages");
  if (!given.pid_file) argv.insert(argv.end(), {"--pidfile", pid_file_});
  if (!given.verbosity) argv.push_back("-v2");
  argv.insert(argv.end(), options_.criu_options.begin(), options_.criu_options.end());
  const std::string copy = options_.work + (given.log_file ? "/restore.out" : "/restore.log");
  return CriuProcess::start(
      {.argv = std::move(argv), .log_file = copy, .show = options_.show_line});
}

Status Restore::start_restore() {
  auto started = options_.start ? options_.start(images()) : start_criu();
  if (!started) return failure(started.error());
  restore_ = std::move(*started);
  const auto lost = [&] { return pager_ && pager_->ended() && !pager_->succeeded(); };
  const Status waited = serve_until([&] { return restore_->ended() || lost(); });
  if (!waited) return waited;
  // The pager may have failed because the restore failed. In that case the restore ends soon, too,
  // and the restore's error is the cause.
  const auto deadline = Clock::now() + kEndsTogether;
  while (!restore_->ended() && Clock::now() < deadline) {
    std::vector<pollfd> fds;
    restore_->add_to(fds);
    poll(fds.data(), fds.size(), static_cast<int>(kLookInterval.count()));
    restore_->process();
  }
  if (!restore_->ended()) {  // the pager failed first; `criu restore` still waits for pages
    restore_->end();
    return failure(ECHILD, explain("the pager", *pager_).message);
  }
  if (restore_->succeeded()) return {};
  if (!users_log_.empty()) {
    std::ifstream log(users_log_);
    for (std::string line; std::getline(log, line);) restore_->errors().note(line);
  }
  // The restore may have failed because the pager failed: CRIU does not release a tree whose pager
  // has failed. In that case the pager ends as soon as the guard has killed the tree.
  if (pager_ && !pager_->errors().empty()) (void)pager_->await_end(kEndsTogether);
  Error error = explain(options_.name, *restore_);
  if (lost() && !pager_->errors().summary().empty()) {
    error.message += "; " + explain("the pager", *pager_).message;
  }
  return failure(std::move(error));
}

Status Restore::finish_pages() {
  if (!pager_) return {};
  if (Status served = serve_until([&] { return pager_->ended(); }); !served) return served;
  if (pager_->succeeded()) return {};
  return failure(EFAULT, explain("the pager", *pager_).message);
}

Status Restore::serve_until(const std::function<bool()>& done) {
  for (;;) {
    for (CriuProcess* process : {pager_.get(), restore_.get()}) {
      if (process != nullptr) process->process();
    }
    if (done()) return {};
    std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}};
    if (pager_) pager_->add_to(fds);
    if (restore_) restore_->add_to(fds);
    const bool can_be_cancelled = !running_ && options_.why_cancelled;
    const int wait_ms = can_be_cancelled ? static_cast<int>(kCancelInterval.count()) : -1;
    if (poll(fds.data(), fds.size(), wait_ms) < 0 && errno != EINTR)
      return system_failure("wait for", "criu");
    const std::string why = can_be_cancelled ? options_.why_cancelled() : "";
    if (!why.empty()) return failure(ECANCELED, options_.name + " was ended: " + why);
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    const std::string name = strsignal(static_cast<int>(info.ssi_signo));
    if (!running_ && !options_.stops_on_signal) continue;
    if (!running_)
      return failure(EINTR, "interrupted (" + name +
                                ") before the process ran: ppmr ended CRIU, nothing runs here");
    if (options_.show_notice) {
      options_.show_notice(
          name +
          " ignored: the process already runs and needs its pages; ppmr ends when they are all "
          "in place");
    }
  }
}

Error Restore::explain(const std::string& what, CriuProcess& process) {
  std::string message = what + " " + process.how_it_ended();
  if (const std::string why = process.errors().summary(); !why.empty()) message += ": " + why;
  return {process.was_killed() ? EOWNERDEAD : ECHILD, std::move(message)};
}

Result<pid_t> Restore::read_pid() const {
  std::ifstream file(pid_file_);
  pid_t pid = -1;
  if (!(file >> pid)) return -1;
  return pid;
}

}  // namespace ppmr
