// Checks the kernel features that ppmr and CRIU need, and FUSE.
#pragma once

#include <string>

#include "cli/doctor/diagnosis.h"

namespace ppmr {

// The errno with which each system call failed; 0: the call works.
struct KernelFacts {
  int userfaultfd = 0;
  int pagemap_scan = 0;
  int process_vm_readv = 0;
  int pidfd_open = 0;
  int landlock = 0;
  std::string untracked_writes;  // why no process can move live; empty: it can
  bool seccomp_filters = true;
  std::vector<std::string> missing_namespaces;  // of "mnt", "net", "pid", "time"
  int fuse_device = 0;                          // errno of opening /dev/fuse
  bool has_fusermount = true;
};

// `root`: the directory that contains /proc, /dev and /usr; empty on a real node. The system calls
// always test the running kernel, and leave nothing behind. Threads: any.
KernelFacts gather_kernel_facts(const std::string& root = "");

Diagnoses check_kernel(const KernelFacts& facts);

}  // namespace ppmr
