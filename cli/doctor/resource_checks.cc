#include "cli/doctor/resource_checks.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "daemon/command_line/size_option.h"
#include "preflight/node_facts.h"
#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr int kCapIpcLock = 14;  // from linux/capability.h
// CRIU's page server, which sends the memory of a post-copy migration, needs pipes of this size.
constexpr uint64_t kPipeNeededBytes = 4 << 20;
// This is enough for thousands of records with CRIU's logs. With less, migrations begin to fail.
constexpr uint64_t kRecordsSpaceMinBytes = 100 << 20;

uint64_t number_in(const std::string& path) {
  uint64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

uint64_t available_memory(const std::string& path) {
  std::ifstream lines(path);
  for (std::string key; lines >> key;) {
    uint64_t kib = 0;
    if (key == "MemAvailable:" && lines >> kib) return kib * 1024;
  }
  return 0;
}

Diagnosis check_memlock(const ResourceFacts& facts, uint64_t pool_bytes) {
  const std::string pool = format_size(pool_bytes);
  if (facts.may_lock_any) {
    return ok("memlock",
              fmt::format("the pool of {} can be locked: no limit applies to this user", pool));
  }
  if (facts.memlock_bytes >= pool_bytes) {
    return ok("memlock", fmt::format("the pool of {} can be locked", pool));
  }
  return problem("memlock",
                 fmt::format("the pool of {} cannot be locked: the limit is {}", pool,
                             format_size(facts.memlock_bytes)),
                 "Set LimitMEMLOCK=infinity in the unit, or run `ulimit -l unlimited`");
}

Diagnosis check_pipes(const ResourceFacts& facts) {
  if (facts.pipe_max_bytes == 0) {
    return warning("pipes", "fs.pipe-max-size cannot be read", "Mount /proc");
  }
  if (facts.may_exceed_pipes || facts.pipe_max_bytes >= kPipeNeededBytes) {
    return ok("pipes", fmt::format("pipes can be as large as CRIU needs them for --post-copy{}",
                                   facts.may_exceed_pipes
                                       ? ""
                                       : fmt::format(": {}", format_size(facts.pipe_max_bytes))));
  }
  return warning("pipes",
                 fmt::format("pipes are limited to {}, but a --post-copy migration needs {}",
                             format_size(facts.pipe_max_bytes), format_size(kPipeNeededBytes)),
                 "Run `sysctl fs.pipe-max-size=16777216`, or run ppmr with CAP_SYS_RESOURCE");
}

Diagnosis check_disk(const DiskSpace& disk) {
  if (!disk.why_unknown.empty()) {
    return problem("disk",
                   fmt::format("the free space for {} in {} cannot be read: {}", disk.what,
                               disk.path, disk.why_unknown),
                   "Create the directory, or name another one");
  }
  if (!disk.why_refused.empty()) {
    return problem("disk", "no migration begins: " + disk.why_refused,
                   "Change owner and mode of the directory, or name another one");
  }
  if (disk.free_bytes < kRecordsSpaceMinBytes) {
    return problem("disk",
                   fmt::format("only {} are free for {} in {}", format_size(disk.free_bytes),
                               disk.what, disk.path),
                   "Free space on this file system: a migration that cannot write its record does "
                   "not begin");
  }
  return ok("disk", fmt::format("{} are free for {} in {}", format_size(disk.free_bytes), disk.what,
                                disk.path));
}

void check_ports(const std::vector<RdmaPort>& ports, Diagnoses& found) {
  if (ports.empty()) found.push_back(ok("rdma", "there are no RDMA devices: ppmr uses TCP"));
  for (const RdmaPort& port : ports) {
    const std::string name =
        port.number == 0 ? port.device : fmt::format("{}:{}", port.device, port.number);
    if (port.usable) {
      found.push_back(ok("rdma", fmt::format("the RDMA port {} can be used", name)));
    } else {
      found.push_back(
          warning("rdma", fmt::format("the RDMA port {} cannot be used: {}", name, port.why_not),
                  "Bring the port and its network interface up, see `ppmr devices`; "
                  "without it ppmr uses TCP"));
    }
  }
}

}  // namespace

ResourceFacts gather_resource_facts(const std::string& root) {
  ResourceFacts facts;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    facts.memlock_bytes = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
  }
  if (const auto status = read_process_status(::getpid())) {
    facts.may_lock_any = (status->capabilities >> kCapIpcLock & 1) != 0;
    facts.may_exceed_pipes = (status->capabilities >> kCapSysResource & 1) != 0;
  }
  facts.pipe_max_bytes = number_in(root + "/proc/sys/fs/pipe-max-size");
  facts.memory_available_bytes = available_memory(root + "/proc/meminfo");
  timex clock{};  // modes 0: only reads the clock's state
  const int state = ::adjtimex(&clock);
  facts.clock_synchronised = state >= 0 && state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
  return facts;
}

DiskSpace measure_disk(const std::string& what, const std::string& path) {
  DiskSpace disk{.what = what, .path = path, .free_bytes = 0, .why_unknown = "", .why_refused = ""};
  std::filesystem::path place = path;
  struct statvfs space {};
  int error = 0;
  while ((error = ::statvfs(place.c_str(), &space) == 0 ? 0 : errno) == ENOENT &&
         place.has_relative_path()) {
    place = place.parent_path();
  }
  if (error != 0) {
    disk.why_unknown = std::strerror(error);
  } else {
    disk.free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  }
  return disk;
}

Diagnoses check_resources(const ResourceFacts& facts, uint64_t pool_bytes) {
  Diagnoses found = {check_memlock(facts, pool_bytes), check_pipes(facts)};
  if (facts.memory_available_bytes >= 2 * pool_bytes) {
    found.push_back(ok("memory", fmt::format("{} of memory are available; a target needs as much "
                                             "as the processes that move to it",
                                             format_size(facts.memory_available_bytes))));
  } else {
    found.push_back(warning(
        "memory",
        fmt::format("only {} of memory are available", format_size(facts.memory_available_bytes)),
        "Free memory, or give the target a --spill-dir"));
  }
  for (const DiskSpace& disk : facts.disks) found.push_back(check_disk(disk));
  check_ports(facts.ports, found);
  if (facts.clock_synchronised) {
    found.push_back(ok("clock", "the clock is synchronised"));
  } else {
    found.push_back(warning("clock",
                            "the clock is not synchronised: downtimes and the order of records of "
                            "two nodes can be wrong, and certificates can seem invalid",
                            "Run a time service, such as Debian's chrony or systemd-timesyncd"));
  }
  return found;
}

}  // namespace ppmr
