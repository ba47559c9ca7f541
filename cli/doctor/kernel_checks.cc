#include "cli/doctor/kernel_checks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/landlock.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/unique_fd.h"
#include "processes/memory/write_tracker.h"

namespace ppmr {
namespace {

int error_of(const UniqueFd& fd) { return fd ? 0 : errno; }

int try_userfaultfd() {
  return error_of(UniqueFd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK))));
}

int try_pidfd_open() {
  return error_of(UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0))));
}

int try_process_vm_readv() {
  char from = 'x';
  char to = 0;
  const iovec local{&to, 1};
  const iovec remote{&from, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1 ? 0 : errno;
}

// Calls PAGEMAP_SCAN with size 0. A kernel that has PAGEMAP_SCAN refuses this with EINVAL. An older
// kernel answers ENOTTY, because it has no ioctl(2) for this file. The number of the ioctl(2)
// stands in include/uapi/linux/fs.h, since Linux 6.7.
int try_pagemap_scan() {
  struct Request {
    std::array<uint64_t, 12> fields{};
  };
  const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap) return errno;
  Request request;
  return ::ioctl(pagemap.get(), _IOWR('f', 16, Request), &request) == 0 || errno == EINVAL ? 0
                                                                                           : errno;
}

int try_landlock() {
  return ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION) >= 0
             ? 0
             : errno;
}

// Returns whether a call failed only because this process lacks a right: the kernel has the
// feature.
bool lacks_right(int error) { return error == EPERM || error == EACCES; }

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool has_program(const std::string& root, const std::string& name) {
  for (const char* directory : {"/usr/bin/", "/bin/", "/usr/local/bin/"}) {
    if (exists(root + directory + name)) return true;
  }
  return false;
}

Diagnosis userfaultfd_of(int error) {
  if (error == 0) return ok("userfaultfd", "a process can be restarted before its memory is there");
  const std::string message = fmt::format(
      "userfaultfd is not usable ({}), so no process can be restarted here before all "
      "of its memory is there",
      std::strerror(error));
  return problem("userfaultfd", message,
                 error == EPERM ? "Run ppmr as root, or set sysctl vm.unprivileged_userfaultfd=1"
                                : "Use a kernel with CONFIG_USERFAULTFD, or move with --eager");
}

Diagnosis live_moves_of(const std::string& obstacle) {
  if (obstacle.empty()) return ok("live-moves", "memory is copied while its process runs");
  return warning(
      "live-moves", obstacle + ": processes stand still while all of their memory is sent",
      "Use Linux 6.13 or later. Before it, a live move may need root, CONFIG_MEM_SOFT_DIRTY, "
      "and a kernel that merges no pages (KSM)");
}

void check_fuse(const KernelFacts& facts, Diagnoses& found) {
  if (facts.fuse_device == ENOENT || facts.fuse_device == ENXIO || facts.fuse_device == ENODEV) {
    found.push_back(problem("fuse", "there is no /dev/fuse, so ppmr cannot mount",
                            "Load the kernel module with `modprobe fuse`; in a container, pass the "
                            "device in"));
  } else if (facts.fuse_device != 0) {
    found.push_back(problem("fuse",
                            fmt::format("/dev/fuse cannot be opened ({}), so ppmr cannot mount",
                                        std::strerror(facts.fuse_device)),
                            "Run ppmr as root; in a container, allow the device"));
  } else if (!facts.has_fusermount) {
    found.push_back(warning("fuse",
                            "/dev/fuse works, but there is no fusermount3: users other than root "
                            "cannot mount, and mounts cannot be removed with it",
                            "Install Debian's fuse3"));
  } else {
    found.push_back(ok("fuse", "/dev/fuse and fusermount3 are there"));
  }
}

}  // namespace

KernelFacts gather_kernel_facts(const std::string& root) {
  KernelFacts facts;
  facts.userfaultfd = try_userfaultfd();
  facts.pagemap_scan = try_pagemap_scan();
  facts.process_vm_readv = try_process_vm_readv();
  facts.pidfd_open = try_pidfd_open();
  facts.landlock = try_landlock();
  if (const Status tracks = WriteTracker::check_kernel(); !tracks) {
    facts.untracked_writes = tracks.error().message;
  }
  facts.seccomp_filters = exists(root + "/proc/sys/kernel/seccomp/actions_avail");
  for (const char* name : {"mnt", "net", "pid", "time"}) {
    if (!exists(root + "/proc/self/ns/" + name)) facts.missing_namespaces.emplace_back(name);
  }
  facts.fuse_device = error_of(UniqueFd(::open((root + "/dev/fuse").c_str(), O_RDWR | O_CLOEXEC)));
  facts.has_fusermount = has_program(root, "fusermount3");
  return facts;
}

Diagnoses check_kernel(const KernelFacts& facts) {
  Diagnoses found = {userfaultfd_of(facts.userfaultfd)};
  if (facts.process_vm_readv == 0 && facts.pidfd_open == 0) {
    found.push_back(ok("process-access", "the memory of other processes can be read"));
  } else {
    const bool reading = facts.process_vm_readv != 0;
    const int error = reading ? facts.process_vm_readv : facts.pidfd_open;
    found.push_back(
        problem("process-access",
                fmt::format("{} fails: {}", reading ? "process_vm_readv" : "pidfd_open",
                            std::strerror(error)),
                lacks_right(error)
                    ? "Run ppmr as root; in a container, allow the system call"
                    : "Use a kernel of version 5.3 or later with CONFIG_CROSS_MEMORY_ATTACH; in "
                      "a container, allow the system call"));
  }
  if (facts.pagemap_scan == 0) {
    found.push_back(ok("pagemap-scan", "the kernel lists the pages of a process (PAGEMAP_SCAN)"));
  } else if (lacks_right(facts.pagemap_scan)) {
    found.push_back(warning("pagemap-scan",
                            fmt::format("this process must not use PAGEMAP_SCAN ({})",
                                        std::strerror(facts.pagemap_scan)),
                            "Run ppmr as root; in a container, allow the system call"));
  } else {
    found.push_back(warning("pagemap-scan",
                            "the kernel has no PAGEMAP_SCAN: a dump looks at every page by itself, "
                            "which takes longer for large processes",
                            "Use Linux 6.7 or later if downtimes matter"));
  }
  found.push_back(live_moves_of(facts.untracked_writes));
  if (facts.missing_namespaces.empty()) {
    found.push_back(ok("namespaces", "mount, network, pid and time namespaces are there"));
  } else {
    std::string names;
    for (const std::string& name : facts.missing_namespaces) {
      names += (names.empty() ? "" : ", ") + name;
    }
    found.push_back(problem("namespaces", "the kernel has no namespaces of the kind " + names,
                            "Use a kernel of version 5.6 or later with CONFIG_NAMESPACES and "
                            "CONFIG_TIME_NS"));
  }
  if (facts.landlock == 0 && facts.seccomp_filters) {
    found.push_back(ok("confinement", "a daemon can give up its rights (Landlock, seccomp)"));
  } else if (facts.seccomp_filters && lacks_right(facts.landlock)) {
    found.push_back(warning("confinement",
                            fmt::format("this process must not use Landlock ({}), so a daemon "
                                        "would run with more rights than it needs",
                                        std::strerror(facts.landlock)),
                            "Run ppmr as root; in a container, allow the system call"));
  } else {
    found.push_back(
        warning("confinement",
                fmt::format("a daemon runs with more rights than it needs: the kernel has no {}",
                            facts.seccomp_filters
                                ? fmt::format("Landlock ({})", std::strerror(facts.landlock))
                                : "seccomp filters"),
                facts.seccomp_filters ? "Boot with `lsm=landlock,...` on Linux 5.13 or later"
                                      : "Use a kernel with CONFIG_SECCOMP_FILTER"));
  }
  check_fuse(facts, found);
  return found;
}

}  // namespace ppmr
