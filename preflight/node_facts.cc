#include "preflight/node_facts.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "base/clock.h"
#include "processes/proc_files.h"
#include "rdma_stream/verbs/verbs_device.h"

namespace ppmr {
namespace {

// The flags of /proc/cpuinfo on x86 for instructions or state that user programs can use. The other
// flags (bugs, virtualization, clocks, power) may differ between nodes.
const std::set<std::string_view> kInstructionFlags = {
    "3dnow",    "3dnowext",  "3dnowprefetch", "abm",     "adx",        "aes",       "avx",
    "avx2",     "avx_vnni",  "bmi1",          "bmi2",    "cldemote",   "clflush",   "clflushopt",
    "clwb",     "clzero",    "cmov",          "cx16",    "cx8",        "enqcmd",    "erms",
    "f16c",     "fma",       "fma4",          "fpu",     "fsgsbase",   "fsrm",      "fxsr",
    "fxsr_opt", "gfni",      "hle",           "lahf_lm", "lwp",        "mmx",       "mmxext",
    "movbe",    "movdir64b", "movdiri",       "mwaitx",  "ospke",      "pclmulqdq", "pku",
    "pni",      "popcnt",    "ptwrite",       "rdpid",   "rdrand",     "rdseed",    "rdtscp",
    "rtm",      "serialize", "sha_ni",        "sse",     "sse2",       "sse4_1",    "sse4_2",
    "sse4a",    "ssse3",     "syscall",       "tbm",     "user_shstk", "vaes",      "vpclmulqdq",
    "waitpkg",  "xgetbv1",   "xop",           "xsave",   "xsavec",     "xsaveopt"};

std::string read_file(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

uint64_t available_memory() {
  std::istringstream lines(read_file("/proc/meminfo"));
  for (std::string key; lines >> key;) {
    uint64_t kib = 0;
    if (key == "MemAvailable:" && lines >> kib) return kib * 1024;
  }
  return 0;
}

RdmaAbilities abilities_of(const RdmaPort& port) {
  RdmaAbilities can;
  can.device = port.device;
  can.port = port.number;
  can.is_active = port.state == "active";
  can.link_layer = port.link_layer;
  can.queue_pairs = port.queue_pairs_max;
  can.completion_queues = port.completion_queues_max;
  can.shared_queues = port.shared_queues_max;
  can.regions = port.regions_max;
  can.domains = port.domains_max;
  can.requests = port.requests_max;
  can.shared_requests = port.shared_requests_max;
  can.completions = port.completions_max;
  can.pieces = port.pieces_max;
  can.mtu_bytes = port.mtu_bytes;
  for (const RdmaPort::Gid& gid : port.gids) can.gid_kinds.insert(rdma_gid_kind(gid.gid, gid.type));
  return can;
}

}  // namespace

bool NodeFacts::has_feature(const std::string& feature) const {
  return std::find(features.begin(), features.end(), feature) != features.end();
}

// Each pipe needs two descriptors. With CAP_SYS_RESOURCE, neither the limit of descriptors nor that
// of the size of a pipe applies to CRIU.
bool NodeFacts::can_hold_in_pipes(uint64_t memory_bytes) const {
  constexpr uint64_t kOtherDescriptors = 1024;
  constexpr uint64_t kDescriptorsOfPipe = 2;
  const auto limit = hard_limits.find("Max open files");
  if (has_capability(kCapSysResource) || pipe_max_bytes == 0 || limit == hard_limits.end()) {
    return true;
  }
  const uint64_t descriptors = std::strtoull(limit->second.c_str(), nullptr, 10);
  if (descriptors == 0) return true;  // "unlimited"
  return memory_bytes / pipe_max_bytes * kDescriptorsOfPipe + kOtherDescriptors <= descriptors;
}

std::vector<std::string> parse_cpu_features(std::string_view cpuinfo) {
  std::set<std::string> found;
  std::istringstream lines{std::string(cpuinfo)};
  for (std::string line; std::getline(lines, line);) {
    const bool x86 = line.starts_with("flags");
    if (!x86 && !line.starts_with("Features")) continue;  // ARM: all of "Features" matters
    std::istringstream words(line.substr(std::min(line.find(':') + 1, line.size())));
    for (std::string word; words >> word;) {
      if (!x86 || kInstructionFlags.contains(word) || word.starts_with("avx512") ||
          word.starts_with("amx_") || word.starts_with("avx10"))
        found.insert(word);
    }
    break;  // all processors have the same flags
  }
  return {found.begin(), found.end()};
}

std::map<std::string, std::string> parse_hard_limits(std::string_view text) {
  constexpr size_t kNameWidth = 26;  // see fs/proc/base.c
  std::map<std::string, std::string> limits;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("Max ") || line.size() < kNameWidth) continue;
    std::string name = line.substr(0, kNameWidth);
    name.resize(name.find_last_not_of(' ') + 1);
    std::istringstream values(line.substr(kNameWidth));
    std::string soft, hard;
    if (values >> soft >> hard) limits[name] = hard;
  }
  return limits;
}

NodeFacts gather_node_facts(CriuAnswers& criu) {
  NodeFacts facts;
  utsname name;
  if (uname(&name) == 0) {
    facts.host = name.nodename;
    facts.architecture = name.machine;
    facts.kernel = name.release;
  }
  facts.criu_path = criu.facts().path;
  facts.criu_version = criu.facts().version;
  facts.criu_problem = criu.facts().problem;
  facts.features = criu.facts().features;
  facts.cpu_features = parse_cpu_features(read_file("/proc/cpuinfo"));
  facts.memory_available_bytes = available_memory();
  facts.pipe_max_bytes =
      std::strtoull(read_file("/proc/sys/fs/pipe-max-size").c_str(), nullptr, 10);
  if (const auto status = read_process_status(getpid())) {
    facts.user = status->effective_uid;
    facts.capabilities = status->capabilities;
  }
  if (const auto limits = read_process_file(getpid(), "limits"))
    facts.hard_limits = parse_hard_limits(*limits);
  for (const RdmaPort& port : find_rdma_ports()) {
    facts.rdma_abilities.push_back(abilities_of(port));
    if (port.usable) facts.rdma_ports.push_back(fmt::format("{}:{}", port.device, port.number));
  }
  facts.clock_ns = realtime_ns();
  return facts;
}

}  // namespace ppmr
