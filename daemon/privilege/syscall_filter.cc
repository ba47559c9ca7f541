// The filter lists the allowed calls, not the forbidden calls. So it also refuses calls that a
// later kernel adds. The list has the calls that glibc, libstdc++, libfuse, OpenSSL and libibverbs
// use for memory, threads, time, open files and sockets.
//
// A refused call fails as on a kernel that lacks the call, and libraries then use an older call.
// Rejected: to end the process. If this list lacked a call by mistake, the images of all sources
// would be lost.
#include "daemon/privilege/syscall_filter.h"

#include <rdma/rdma_user_ioctl_cmds.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <initializer_list>
#include <memory>
#include <string>

namespace ppmr {
namespace {

// clang-format off
constexpr const char* kAllowed[] = {
    // Memory.
    "brk", "madvise", "membarrier", "memfd_create", "mincore", "mlock", "mlock2", "mmap",
    "mprotect", "mremap", "msync", "munlock", "munmap",
    // Open files.
    "close", "close_range", "copy_file_range", "dup", "dup2", "dup3", "fadvise64", "fallocate",
    "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "lseek", "pipe",
    "pipe2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readv",
    "splice", "sync_file_range", "tee", "vmsplice", "write", "writev",
    // Files by name; Landlock limits which files.
    "access", "chdir", "faccessat", "faccessat2", "getcwd", "getdents64", "lstat", "newfstatat",
    "open", "openat", "openat2", "readlink", "readlinkat", "stat", "statfs", "statx",
    // Waiting.
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait",
    "eventfd2", "poll", "ppoll", "pselect6", "select", "signalfd4", "timerfd_create",
    "timerfd_gettime", "timerfd_settime",
    // Sockets. See allow_socket_families().
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt",
    "listen", "recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt",
    "shutdown", "socketpair",
    // Threads and signals. See allow_threads().
    "arch_prctl", "exit", "exit_group", "futex", "futex_waitv", "get_robust_list", "gettid",
    "kill", "pause", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending",
    "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getparam",
    "sched_getscheduler", "sched_setaffinity", "sched_yield", "set_robust_list",
    "set_tid_address", "sigaltstack", "tgkill", "wait4", "waitid",
    // Time.
    "clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "nanosleep", "time",
    // Information about this process and the machine.
    "capget", "getcpu", "getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp",
    "getpid", "getppid", "getpriority", "getrandom", "getresgid", "getresuid", "getrlimit",
    "getrusage", "getsid", "getuid", "prctl", "prlimit64", "setpriority", "setrlimit", "setsid",
    "sysinfo", "times", "umask", "uname",
};
// clang-format on

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;

// Turns a return value of libseccomp, which is -errno on failure, into a Status.
Status checked(int result, const std::string& what) {
  if (result == 0) return {};
  return system_failure("add a seccomp rule for", what, -result);
}

// Allows sockets of these families only. The kernel's other families are rarely used and have had
// many flaws.
Status allow_socket_families(scmp_filter_ctx filter) {
  for (const int family : {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}) {
    const int added = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
                                       SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(family)));
    if (Status status = checked(added, "socket"); !status) return status;
  }
  return {};
}

// Allows clone(2) for threads only. A filter cannot see the flags of clone3(2), so clone3(2) is not
// allowed, and glibc then uses clone(2).
Status allow_threads(scmp_filter_ctx filter) {
  return checked(seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                                  SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD)),
                 "clone");
}

// Allows the ioctl(2) commands that the daemon needs. TIOCSTI, for example, is not among them: it
// types into the terminal from which the daemon was started. The kernel ignores the upper half of
// the command.
Status allow_device_control(scmp_filter_ctx filter) {
  for (const scmp_datum_t command : std::initializer_list<scmp_datum_t>{
           TCGETS, FIONREAD, FIONBIO, SIOCGIFINDEX, SIOCGIFNAME, RDMA_VERBS_IOCTL}) {
    const int added = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                                       SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffff, command));
    if (Status status = checked(added, "ioctl"); !status) return status;
  }
  return {};
}

}  // namespace

Status filter_system_calls() {
  const Filter filter(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)), &seccomp_release);
  if (!filter) return system_failure("create", "a seccomp filter", ENOMEM);
  for (const char* name : kAllowed) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR) continue;  // this version of libseccomp does not know the call
    if (Status added = checked(seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, number, 0), name);
        !added) {
      return added;
    }
  }
  if (Status added = allow_socket_families(filter.get()); !added) return added;
  if (Status added = allow_threads(filter.get()); !added) return added;
  if (Status added = allow_device_control(filter.get()); !added) return added;
  if (const int loaded = seccomp_load(filter.get()); loaded != 0) {
    return system_failure("load", "a seccomp filter", -loaded);
  }
  return {};
}

}  // namespace ppmr
