// Two processes share a pipe: the parent, for which the user's shell waits, and the child, which
// mounts. The child writes one verdict: 'R' (ready), or 'F' (failed) with exit code and message. If
// the child dies before, the parent reads end-of-file and gets the reason from waitpid().
//
// Until the child is ready, it stays in the parent's terminal session (setsid(2)), so that Ctrl-C
// ends a slow start. It also receives SIGTERM if the parent dies.
//
// Rejected: daemon(3). After the mount, it would fork a process that has threads. Before the mount,
// it would make the parent exit too early to report a failure of the mount to the shell.
#include "daemon/background/daemon.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/syslog_sink.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "daemon/background/journal.h"
#include "daemon/command_line/terminal_style.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

constexpr char kReady = 'R';
constexpr char kFailed = 'F';
constexpr char kLogPattern[] = "%Y-%m-%d %H:%M:%S.%e %n[%P] %l: %*";
constexpr char kSyslogPattern[] = "%l: %*";  // syslog adds time, name and pid
constexpr char kJournalPattern[] = "%j%l: %*";

sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

// Disables core dumps, and allows ptrace(2) to root only, because this process holds the memory of
// other processes.
void protect_memory() {
  rlimit core{};
  getrlimit(RLIMIT_CORE, &core);
  core.rlim_cur = 0;  // keeps the hard limit, which restored processes inherit
  setrlimit(RLIMIT_CORE, &core);
  prctl(PR_SET_DUMPABLE, 0);
}

// Makes free() return large buffers to the kernel. By default, the first free of a large buffer
// raises malloc's threshold, and later large buffers stay in the heap (mallopt(3),
// M_MMAP_THRESHOLD).
void return_large_buffers() { mallopt(M_MMAP_THRESHOLD, 256 << 10); }

// Escapes the text of a log line (%*). Messages of peers and names of files may contain line
// breaks, which would let them forge log lines, and sequences that control a terminal.
class EscapedText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& line) override {
    for (const char c : message.payload) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f) {
        fmt::format_to(std::back_inserter(line), "\\x{:02x}", byte);
      } else {
        line.push_back(c);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedText>();
  }
};

// Writes the level of a log line in the form that the journal reads (%j).
class JournalLevel final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& line) override {
    const std::string_view prefix = journal_prefix(message.level);
    line.append(prefix.data(), prefix.data() + prefix.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JournalLevel>();
  }
};

std::unique_ptr<spdlog::formatter> line_format(const std::string& pattern) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedText>('*').add_flag<JournalLevel>('j').set_pattern(pattern);
  return formatter;
}

std::string describe_end(pid_t child) {
  int status = 0;
  pid_t got;
  do {
    got = waitpid(child, &status, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return "disappeared";
  if (WIFSIGNALED(status)) {
    return std::string("was killed by signal ") + std::to_string(WTERMSIG(status)) + " (" +
           strsignal(WTERMSIG(status)) + ")";
  }
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

// Waits for the verdict of the child, prints an error, and returns the exit code. The parent calls
// this.
int await_verdict(const DaemonOptions& options, UniqueFd pipe, pid_t child) {
  std::string verdict;
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(pipe.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    verdict.append(buffer, static_cast<size_t>(n));
  }
  if (!verdict.empty() && verdict[0] == kReady) return to_int(ExitCode::kSuccess);
  if (verdict.size() >= 2 && verdict[0] == kFailed) {
    print_error(options.name, verdict.substr(2));
    const int exit_code = static_cast<unsigned char>(verdict[1]);
    print_manual_section(options.name, static_cast<ExitCode>(exit_code));
    return exit_code;
  }
  print_error(options.name,
              "the background process " + describe_end(child) + " before its mount was ready");
  return to_int(ExitCode::kFailure);
}

}  // namespace

int run_daemon(const DaemonOptions& options, const std::function<ExitCode(Daemon&)>& body) {
  Daemon daemon(options);
  if (!options.foreground) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      print_error(options.name,
                  std::string("start in the background: create a pipe: ") + std::strerror(errno));
      return to_int(ExitCode::kFailure);
    }
    UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    std::fflush(nullptr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) {
      print_error(options.name,
                  std::string("start in the background: fork: ") + std::strerror(errno));
      return to_int(ExitCode::kFailure);
    }
    if (child > 0) {
      write_end.reset();
      return await_verdict(options, std::move(read_end), child);
    }
    daemon.parent_ = std::move(write_end);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    // If the parent died before the call of prctl(2), no SIGTERM will arrive.
    if (getppid() != parent) return to_int(ExitCode::kInterrupted);
  }
  StopSignals::block();
  std::signal(SIGPIPE, SIG_IGN);
  protect_memory();
  return_large_buffers();
  if (Status log = daemon.start_log(); !log) {
    return to_int(daemon.failed(log.error(), ExitCode::kFailure));
  }
  ExitCode exit_code = ExitCode::kFailure;
  try {
    exit_code = body(daemon);
  } catch (const std::exception& exception) {  // for example, no thread can be started
    exit_code = daemon.failed({EIO, exception.what()}, ExitCode::kFailure);
  }
  daemon.service_manager_.notify("STOPPING=1");
  spdlog::default_logger()->flush();
  return to_int(exit_code);
}

Status Daemon::start_log() {
  auto sinks = std::make_shared<spdlog::sinks::dist_sink_mt>();
  const auto to_stderr = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sinks->add_sink(to_stderr);
  if (!options_.log_file.empty()) {
    log_path_ = std::filesystem::absolute(options_.log_file).string();
    if (Status opened = open_log_file(); !opened) return opened;
    sinks->add_sink(file_sink_);
  }
  auto logger = std::make_shared<spdlog::logger>(options_.name, std::move(sinks));
  logger->flush_on(spdlog::level::info);
  logger->set_formatter(line_format(kLogPattern));
  if (is_journal(STDERR_FILENO, std::getenv("JOURNAL_STREAM"))) {
    to_stderr->set_formatter(line_format(kJournalPattern));
  }
  spdlog::set_default_logger(std::move(logger));
  return {};
}

Status Daemon::open_log_file() {
  const UniqueFd probe(open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
  if (!probe) {
    tl::unexpected<Error> failed = system_failure("open log file", log_path_);
    failed.value().message +=
        ": make the directory if it is missing (mkdir -p), or name another file";
    return failed;
  }
  try {
    file_sink_ = std::make_shared<spdlog::sinks::basic_file_sink_mt>(log_path_);
  } catch (const spdlog::spdlog_ex& error) {
    return failure(EIO, std::string("open log file: ") + error.what());
  }
  return {};
}

void Daemon::reopen_log() {
  if (!file_sink_) return;
  const auto before = file_sink_;
  if (Status opened = open_log_file(); !opened) {
    spdlog::error("{}; the log continues in the old file", opened.error().message);
    return;
  }
  file_sink_->set_formatter(line_format(kLogPattern));
  auto* sinks =
      static_cast<spdlog::sinks::dist_sink_mt*>(spdlog::default_logger()->sinks()[0].get());
  sinks->add_sink(file_sink_);
  sinks->remove_sink(before);
}

void Daemon::ready() {
  ready_ = true;
  service_manager_.notify("READY=1");
  if (options_.foreground) return;
  auto sink = file_sink_;
  if (!sink) {
    sink =
        std::make_shared<spdlog::sinks::syslog_sink_mt>(options_.name, LOG_PID, LOG_DAEMON, true);
    sink->set_formatter(line_format(kSyslogPattern));
  }
  // A logger cannot replace its sinks while other threads log. The logger's only sink is a
  // dist_sink, which can replace its own sinks.
  auto* sinks =
      static_cast<spdlog::sinks::dist_sink_mt*>(spdlog::default_logger()->sinks()[0].get());
  sinks->set_sinks({std::move(sink)});

  prctl(PR_SET_PDEATHSIG, 0);
  setsid();
  if (chdir("/") != 0) spdlog::warn("chdir /: {}", std::strerror(errno));
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null) {
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null.get(), fd);
  }
  report_to_parent(kReady, ExitCode::kSuccess, "");
}

ExitCode Daemon::failed(const Error& error, ExitCode exit_code) {
  if (ready_) {
    spdlog::error("{}", error.message);
  } else if (parent_) {
    report_to_parent(kFailed, exit_code, error.message);
  } else {
    print_error(options_.name, error.message);
  }
  return exit_code;
}

void Daemon::report_to_parent(char verdict, ExitCode exit_code, const std::string& message) {
  std::string report{verdict, static_cast<char>(to_int(exit_code))};
  report += message.substr(0, 4000);  // a write of up to PIPE_BUF bytes is atomic
  if (parent_ && write(parent_.get(), report.data(), report.size()) < 0) {
    spdlog::warn("cannot report to the parent process: {}", std::strerror(errno));
  }
  parent_.reset();
}

void StopSignals::block() {
  const sigset_t set = stop_signal_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

StopSignals::StopSignals(Stop stop, Reload reload)
    : stop_(std::move(stop)), reload_(std::move(reload)) {
  block();
  const sigset_t set = stop_signal_set();
  signals_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  end_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!signals_ || !end_) throw std::system_error(errno, std::generic_category(), "signalfd");
  thread_ = std::thread([this] { watch(); });
}

StopSignals::~StopSignals() {
  eventfd_write(end_.get(), 1);
  thread_.join();
}

void StopSignals::watch() {
  pollfd fds[] = {{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}};
  for (;;) {
    if (poll(fds, 2, -1) < 0) continue;  // EINTR
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    spdlog::info("signal {} ({}) from process {}", info.ssi_signo,
                 strsignal(static_cast<int>(info.ssi_signo)), info.ssi_pid);
    if (info.ssi_signo == SIGHUP) {
      reload_();
    } else {
      stop_(static_cast<int>(info.ssi_signo));
    }
  }
}

}  // namespace ppmr
