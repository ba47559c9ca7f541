#include "restart_loader/criu/criu_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace ppmr {
namespace {

constexpr int kStatusFd = 3;
constexpr int kRequestFd = 3;
constexpr const char* kInstalledCriu = "/opt/ppmr/criu/usr/sbin/criu";
constexpr size_t kLineMaxBytes = 16 << 10;
constexpr size_t kTakeMaxBytes = 1 << 20;

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("create a pipe for", "criu");
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  fcntl(ends[0], F_SETFL, O_NONBLOCK);  // CRIU's end of the pipe stays blocking
  return pipe;
}

bool executable(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

}  // namespace

Result<std::string> find_criu() {
  if (const char* chosen = std::getenv("PPMR_CRIU"); chosen != nullptr && chosen[0] != 0) {
    if (executable(chosen)) return chosen;
    return system_failure("run CRIU", std::string(chosen) + " (the variable PPMR_CRIU)");
  }
  if (executable(kInstalledCriu)) return kInstalledCriu;
  std::string path = std::getenv("PATH") != nullptr ? std::getenv("PATH") : "";
  path += ":/usr/sbin:/usr/local/sbin";  // a user's PATH often lacks these directories
  for (size_t start = 0; start < path.size();) {
    const size_t colon = std::min(path.find(':', start), path.size());
    const std::string candidate = path.substr(start, colon - start) + "/criu";
    if (candidate[0] == '/' && executable(candidate)) return candidate;
    start = colon + 1;
  }
  return failure(
      ENOENT,
      "no criu found: install Debian's criu, run third_party/install of ppmr's source, or set "
      "PPMR_CRIU to its path");
}

Error execute_criu(const std::string& criu, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(criu.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(criu.c_str(), argv.data());
  return system_failure("run", criu).value();
}

Result<std::unique_ptr<CriuProcess>> CriuProcess::start(CriuProcessOptions options) {
  auto process = std::unique_ptr<CriuProcess>(new CriuProcess);
  auto log = make_pipe();
  if (!log) return failure(log.error());
  SpawnOptions child{.argv = options.argv};
  if (options.background) child.group = SpawnGroup::kOwn;
  child.files = {{log->write_end.get(), STDOUT_FILENO}, {log->write_end.get(), STDERR_FILENO}};
  UniqueFd null;
  if (options.background) {
    null = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    child.files.push_back({null.get(), STDIN_FILENO});
  }
  Pipe status;
  if (options.status_fd) {
    auto made = make_pipe();
    if (!made) return failure(made.error());
    status = std::move(*made);
    child.files.push_back({status.write_end.get(), kStatusFd});
  }
  if (options.request_socket >= 0) child.files.push_back({options.request_socket, kRequestFd});
  for (size_t i = 0; i < options.inherited.size(); ++i) {
    child.files.push_back({options.inherited[i], kFirstInheritedFd + static_cast<int>(i)});
  }
  if (!options.log_file.empty()) {
    process->copy_ =
        UniqueFd(open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!process->copy_) return system_failure("open", options.log_file);
  }
  process->log_pipe_ = std::move(log->read_end);
  process->status_pipe_ = std::move(status.read_end);
  process->options_ = std::move(options);
  auto started = ChildProcess::start(child);
  if (!started) return failure(started.error());
  process->child_ = std::move(*started);
  return process;
}

void CriuProcess::add_to(std::vector<pollfd>& fds) const {
  if (ended_) return;
  fds.push_back({child_.pidfd(), POLLIN, 0});
  if (log_pipe_) fds.push_back({log_pipe_.get(), POLLIN, 0});
  if (status_pipe_) fds.push_back({status_pipe_.get(), POLLIN, 0});
}

void CriuProcess::process() {
  if (ended_) return;
  // Checks whether CRIU has ended before it reads the pipes: if CRIU has ended, the pipes already
  // contain all of its output.
  const bool ended = child_.ended();
  if (status_pipe_) {
    char byte;
    const ssize_t n = read(status_pipe_.get(), &byte, 1);
    if (n > 0) ready_ = true;
    if (n >= 0) status_pipe_.reset();
  }
  take_log(kTakeMaxBytes);
  if (!ended) return;
  take_lines(true);
  log_pipe_.reset();
  status_pipe_.reset();
  ended_ = true;
}

bool CriuProcess::await_end(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    process();
    if (ended_) return true;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    std::vector<pollfd> fds;
    add_to(fds);
    poll(fds.data(), fds.size(), static_cast<int>(left.count()));
  }
}

void CriuProcess::take_log(size_t bytes_max) {
  char buffer[16 << 10];
  for (size_t taken = 0; log_pipe_ && taken < bytes_max;) {
    const ssize_t n = read(log_pipe_.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;  // EAGAIN: the pipe is empty
    if (n == 0) {
      log_pipe_.reset();
      break;
    }
    taken += static_cast<size_t>(n);
    // If the copy cannot be written, for example because the disk is full, the restore continues
    // without a copy.
    if (copy_ && write(copy_.get(), buffer, static_cast<size_t>(n)) < 0) copy_.reset();
    partial_.append(buffer, static_cast<size_t>(n));
    take_lines(false);
  }
}

void CriuProcess::take_lines(bool all) {
  size_t start = 0;
  while (start < partial_.size()) {
    size_t end = partial_.find('\n', start);
    if (end == std::string::npos) {
      if (!all && partial_.size() - start < kLineMaxBytes) break;
      end = partial_.size();
    }
    const std::string line = partial_.substr(start, end - start);
    start = end + 1;
    errors_.note(line);
    if (options_.show && !line.empty() && !is_harmless(parse_criu_line(line))) options_.show(line);
  }
  partial_.erase(0, std::min(start, partial_.size()));
}

Error explain_dump(CriuProcess& process, const std::string& what, const std::string& log) {
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    if (!is_harmless(parse_criu_line(line))) process.errors().note(line);
  }
  std::string message = what + " " + process.how_it_ended();
  if (const std::string why = process.errors().summary(); !why.empty()) message += ": " + why;
  return {ECHILD, message + " (log: " + log + ")"};
}

}  // namespace ppmr
