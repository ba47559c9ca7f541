#include "tests/movable_verbs/ends.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "preflight/rdma_release/rdma_release.h"

extern char** environ;

namespace ppmr::verbs {
namespace {

constexpr std::chrono::seconds kPatience{60};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the path of a built file. Bazel starts a test in the directory that has its files.
std::string built(const std::string& path) { return std::filesystem::absolute(path); }

}  // namespace

void await(const std::string& what, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) FAIL() << "waited in vain for " << what;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void touch(const std::string& path) { std::ofstream(path) << "yes\n"; }

Scratch::Scratch() {
  char home[] = "/tmp/ppmr-mv-XXXXXX";
  if (!mkdtemp(home)) std::abort();
  home_ = home;
  for (const std::string& directory : {fabric(), this->directory()}) mkdir(directory.c_str(), 0700);
}

Scratch::~Scratch() { std::filesystem::remove_all(home_); }

End::End(const Scratch& scratch, const std::string& name, const std::string& partner,
         const std::string& exchange, int machine, const std::vector<std::string>& options,
         const Environment& environment)
    : scratch_(scratch), name_(name), exchange_(exchange) {
  put_on(machine);
  std::vector<std::string> words = {built("tests/movable_verbs/checker"),
                                    "--name",
                                    name,
                                    "--partner",
                                    partner,
                                    "--exchange",
                                    exchange};
  words.insert(words.end(), options.begin(), options.end());
  Environment all = {{"LD_PRELOAD", built("verbs_library/libppmr-verbs.so")},
                     {"LD_LIBRARY_PATH", built("tests/movable_verbs/stub")},
                     {"PPMR_STUB_FABRIC", scratch.fabric()},
                     {"PPMR_STUB_PLACE", scratch.path(name + ".place")},
                     {"PPMR_VERBS_DIRECTORY", scratch.directory()},
                     {"PPMR_VERBS_LOG", scratch.path(name + ".log")}};
  for (const auto& [key, value] : environment) all[key] = value;
  for (char** one = environ; *one; ++one) {
    const std::string text = *one;
    all.try_emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  std::vector<std::string> settings;
  for (const auto& [key, value] : all) settings.push_back(key + "=" + value);
  std::vector<char*> arguments, variables;
  for (std::string& word : words) arguments.push_back(word.data());
  for (std::string& setting : settings) variables.push_back(setting.data());
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  const std::string out = scratch.path(name + ".out");
  pid_ = fork();
  if (pid_ == 0) {
    const int fd = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execve(arguments[0], arguments.data(), variables.data());
    _exit(127);
  }
}

End::~End() {
  if (pid_ > 0) {
    signal(SIGKILL);
    wait();
  }
}

void End::signal(int number) const { kill(pid_, number); }

void End::stop() const {
  int status = 0;
  signal(SIGSTOP);
  EXPECT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
  EXPECT_TRUE(WIFSTOPPED(status)) << output();
}

void End::put_on(int machine, int room) const {
  std::ofstream place(scratch_.path(name_ + ".place"));
  place << machine;
  if (room >= 0) place << " " << room;
  place << "\n";
}

std::string End::ask(const std::string& request) const {
  const auto listeners = find_rdma_listeners({pid_});
  if (!listeners || listeners->size() != 1) return "no listener";
  const Status done = ask_rdma_listener(listeners->front(), request, kPatience);
  return done ? "ok" : done.error().message;
}

RdmaCheck End::check() const {
  const auto listeners = find_rdma_listeners({pid_});
  if (!listeners || listeners->size() != 1) {
    ADD_FAILURE() << name_ << " has no listener";
    return {};
  }
  const auto check = check_rdma_listener(listeners->front(), kPatience);
  if (!check) ADD_FAILURE() << check.error().message;
  return check ? *check : RdmaCheck{};
}

uint64_t End::rounds() const {
  const std::string text = read_file(exchange_ + "/" + name_ + ".progress");
  return text.empty() ? 0 : std::stoull(text);
}

void End::await_rounds(uint64_t more) const {
  const uint64_t goal = rounds() + more;
  await("rounds of " + name_, [&] { return rounds() >= goal || has_ended(); });
}

// Leaves the process to wait().
bool End::has_ended() const {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

int End::wait() {
  int status = 0;
  pid_t ended = 0;
  await("the end of " + name_, [&] {
    ended = waitpid(pid_, &status, WNOHANG);
    return ended != 0;
  });
  if (ended != pid_) return -1000;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

std::string End::output() const { return read_file(scratch_.path(name_ + ".out")); }
std::string End::log() const { return read_file(scratch_.path(name_ + ".log")); }

Ends::Ends(const std::vector<std::string>& options, const Environment& environment)
    : a(std::make_unique<End>(scratch, "a", "b", scratch.path(""), 1, options, environment)),
      b(std::make_unique<End>(scratch, "b", "a", scratch.path(""), 2, options, environment)) {
  a->await_rounds(3);
  b->await_rounds(3);
}

void Ends::finish() {
  touch(scratch.path("stop.now"));
  for (End* end : {a.get(), b.get()}) {
    EXPECT_EQ(end->wait(), 0) << end->output() << end->log();
    EXPECT_NE(end->output().find("all right"), std::string::npos) << end->output();
  }
}

}  // namespace ppmr::verbs
