// Tests what a process can still do after confine(). Each attempt runs in a child process, which
// stands for a data daemon that an attacker controls.
#include "daemon/privilege/confinement.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <thread>

#include "base/unique_fd.h"

namespace ppmr {
namespace {

constexpr int kConfineFailed = 250;

int landlock_version() {
  return static_cast<int>(
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION));
}

// Returns the errno of a call that failed, or 0 if the call succeeded.
int outcome(long result) { return result < 0 ? errno : 0; }

// Runs `attempt` in a child process that is confined, and returns its result, at most 249.
int as_confined(const std::function<int()>& attempt, const LandlockRules& rules = {}) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto user = choose_daemon_user("");
    if (!user || !confine(*user, rules)) ::_exit(kConfineFailed);
    ::_exit(attempt());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return WEXITSTATUS(status);
}

class ConfinementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, because only root can change the user";
  }
};

TEST_F(ConfinementTest, KernelShowsNoRightsAtAll) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto confinement = confine(*choose_daemon_user(""), {});
    const char verdict = confinement && confinement->capabilities == "none" &&
                                 confinement->no_new_privileges &&
                                 confinement->system_calls_filtered
                             ? 'y'
                             : 'n';
    if (::write(ends[1], &verdict, 1) != 1) ::_exit(1);
    ::pause();
  }
  char verdict = 0;
  ASSERT_EQ(::read(read_end.get(), &verdict, 1), 1);
  EXPECT_EQ(verdict, 'y');
  std::ifstream status("/proc/" + std::to_string(child) + "/status");
  const std::string text((std::istreambuf_iterator<char>(status)), {});
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"}) {
    EXPECT_NE(text.find(std::string(set) + ":\t0000000000000000"), std::string::npos) << text;
  }
  EXPECT_NE(text.find("NoNewPrivs:\t1"), std::string::npos) << text;
  EXPECT_NE(text.find("Seccomp:\t2"), std::string::npos) << text;
  EXPECT_EQ(text.find("Uid:\t0"), std::string::npos) << text;
  EXPECT_EQ(text.find("Gid:\t0"), std::string::npos) << text;
  EXPECT_NE(text.find("Groups:\t \n"), std::string::npos) << text;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(ConfinementTest, CannotOpenFiles) {
  const auto open_file = [](const char* path, int flags) {
    return as_confined([=] { return outcome(::open(path, flags | O_CLOEXEC)); });
  };
  EXPECT_EQ(open_file("/etc/shadow", O_RDONLY), EACCES);
  EXPECT_EQ(open_file("/proc/1/mem", O_RDONLY), EACCES);
  if (landlock_version() < 0) GTEST_SKIP() << "the rest needs Landlock";
  EXPECT_EQ(open_file("/etc/passwd", O_RDONLY), EACCES);
  EXPECT_EQ(open_file("/proc/self/maps", O_RDONLY), EACCES);
  EXPECT_EQ(open_file("/tmp", O_TMPFILE | O_WRONLY), EACCES);
}

TEST_F(ConfinementTest, OpensFilesThatTheRulesAllow) {
  if (landlock_version() < 0) GTEST_SKIP() << "needs Landlock";
  const auto open_files = [] {
    if (::open("/dev/null", O_RDWR) < 0) return 1;
    if (::open("/usr/bin/env", O_RDONLY) < 0) return 2;
    if (::open("/usr", O_RDONLY | O_DIRECTORY) < 0) return 3;
    return ::open("/etc/passwd", O_RDONLY) < 0 ? 0 : 4;
  };
  EXPECT_EQ(
      as_confined(open_files, {.readable = {"/usr", "/does/not/exist"}, .writable = {"/dev/null"}}),
      0);
}

TEST_F(ConfinementTest, CannotStartPrograms) {
  const auto execute = [] {
    ::execl("/bin/true", "true", nullptr);
    return errno;
  };
  EXPECT_EQ(as_confined(execute, {.readable = {"/"}}), ENOSYS);
  const auto execute_descriptor = [] {
    const int program = ::open("/bin/true", O_RDONLY);
    const char* const words[] = {"true", nullptr};
    ::syscall(SYS_execveat, program, "", words, nullptr, AT_EMPTY_PATH);
    return errno;
  };
  EXPECT_EQ(as_confined(execute_descriptor, {.readable = {"/"}}), ENOSYS);
  EXPECT_EQ(as_confined([] { return outcome(::fork()); }), ENOSYS);
  EXPECT_EQ(as_confined([] { return outcome(::vfork()); }), ENOSYS);
  EXPECT_EQ(as_confined([] { return std::system("/bin/true") == 0 ? 0 : 1; }, {.readable = {"/"}}),
            1);
}

TEST_F(ConfinementTest, CannotTouchOtherProcesses) {
  const pid_t other = ::getpid();  // the pid of the test, which runs as root
  EXPECT_EQ(as_confined([=] { return outcome(::kill(other, SIGCONT)); }), EPERM);
  EXPECT_EQ(as_confined([=] { return outcome(::ptrace(PTRACE_SEIZE, other, 0, 0)); }), ENOSYS);
  char byte = 0;
  const iovec memory{&byte, 1};
  EXPECT_EQ(
      as_confined([&] { return outcome(::process_vm_readv(other, &memory, 1, &memory, 1, 0)); }),
      ENOSYS);
}

TEST_F(ConfinementTest, CannotGainRights) {
  EXPECT_EQ(as_confined([] { return outcome(::setuid(0)); }), ENOSYS);
  EXPECT_EQ(as_confined([] { return outcome(::setgroups(0, nullptr)); }), ENOSYS);
  EXPECT_EQ(as_confined([] { return outcome(::unshare(CLONE_NEWUSER)); }), ENOSYS);
  EXPECT_EQ(as_confined([] { return outcome(::mount("none", "/mnt", "tmpfs", 0, "")); }), ENOSYS);
  for (const long call :
       {SYS_bpf, SYS_keyctl, SYS_perf_event_open, SYS_userfaultfd, SYS_init_module, SYS_kexec_load,
        SYS_open_by_handle_at, SYS_io_uring_setup, SYS_pidfd_getfd, SYS_clone3}) {
    EXPECT_EQ(as_confined([=] { return outcome(::syscall(call, 0, 0, 0, 0, 0)); }), ENOSYS) << call;
  }
}

TEST_F(ConfinementTest, OpensNoUnusualSockets) {
  EXPECT_EQ(as_confined([] { return outcome(::socket(AF_PACKET, SOCK_RAW, 0)); }), ENOSYS);
  EXPECT_EQ(as_confined([] { return outcome(::socket(AF_ALG, SOCK_SEQPACKET, 0)); }), ENOSYS);
  EXPECT_EQ(as_confined([] { return outcome(::socket(AF_INET, SOCK_STREAM, 0)); }), 0);
  if (landlock_version() < 4) GTEST_SKIP() << "the rest needs Linux 6.7";
  const auto bind_port = [] {
    sockaddr_in address{.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    return outcome(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  };
  EXPECT_EQ(as_confined(bind_port), EACCES);
}

TEST_F(ConfinementTest, KeepsTheRightsThatADaemonNeeds) {
  UniqueFd file(::open("/etc/shadow", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(file);
  const auto work = [&] {
    char byte = 0;
    if (::pread(file.get(), &byte, 1, 0) != 1) return 1;  // open files stay open
    std::atomic<bool> ran = false;
    std::thread([&] { ran = true; }).join();
    if (!ran) return 2;
    std::string text(1 << 20, 'x');
    text.append(text);
    if (text.back() != 'x') return 3;
    pollfd nothing{-1, 0, 0};
    return ::poll(&nothing, 1, 1) == 0 ? 0 : 4;
  };
  EXPECT_EQ(as_confined(work), 0);
}

TEST_F(ConfinementTest, LocksMemoryOnlyIfRequested) {
  constexpr size_t kBytes = size_t{1} << 20;
  const auto lock = [](bool locks_memory) {
    const pid_t child = ::fork();
    if (child == 0) {
      const rlimit small{64 << 10, 64 << 10};
      if (::setrlimit(RLIMIT_MEMLOCK, &small) != 0) ::_exit(kConfineFailed);
      if (!confine(*choose_daemon_user(""), {}, locks_memory)) ::_exit(kConfineFailed);
      void* memory =
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      // AddressSanitizer replaces mlock(3) by a function that does nothing.
      ::_exit(outcome(static_cast<int>(::syscall(SYS_mlock, memory, kBytes))));
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(lock(true), 0);
  EXPECT_EQ(lock(false), ENOMEM);
}

TEST_F(ConfinementTest, KeepsTheSignalForTheDeathOfTheParent) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (!confine(*choose_daemon_user(""), {})) ::_exit(1);
    int signal = 0;
    ::prctl(PR_GET_PDEATHSIG, &signal);
    ::_exit(signal == SIGTERM ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(ConfinementTest, RefusesAProcessWithThreads) {
  std::atomic<bool> end = false;
  std::thread thread([&] { end.wait(false); });
  const auto confinement = confine(*choose_daemon_user(""), {});
  end = true;
  end.notify_all();
  thread.join();
  ASSERT_FALSE(confinement);
  EXPECT_EQ(confinement.error().errno_value, EINVAL);
}

TEST(DaemonUser, IsNeverRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(choose_daemon_user("root").error().errno_value, EPERM);
  EXPECT_EQ(choose_daemon_user("no-such-user").error().errno_value, ENOENT);
  const auto named = choose_daemon_user("nobody");
  ASSERT_TRUE(named);
  EXPECT_EQ(named->name, "nobody");
  const auto own = choose_daemon_user("");
  ASSERT_TRUE(own);
  EXPECT_NE(own->uid, 0u);
  if (own->name.empty()) {
    EXPECT_NE(choose_daemon_user("")->uid, own->uid) << "two daemons share a user";
  }
}

}  // namespace
}  // namespace ppmr
