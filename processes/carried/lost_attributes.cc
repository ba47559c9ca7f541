#include "processes/carried/lost_attributes.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "processes/proc_files.h"

namespace ppmr {
namespace {

constexpr const char* kPolicies = "memory policy (NUMA) of single mappings (mbind)";
constexpr const char* kLocking =
    "locking of future mappings, if it has asked for that (mlockall(MCL_FUTURE))";

// Fields that only the process itself can change. They are equal in all processes that have not
// changed them.
constexpr std::array<std::pair<const char*, const char*>, 3> kCompared = {
    {{"Speculation_Store_Bypass", "speculative store bypass (prctl(PR_SET_SPECULATION_CTRL))"},
     {"SpeculationIndirectBranch", "speculation of branches (prctl(PR_SET_SPECULATION_CTRL))"},
     {"untag_mask", "addresses with tags (ARCH_ENABLE_TAGGED_ADDR)"}}};

std::optional<std::string> field_of(std::string_view status, const std::string& name) {
  std::istringstream lines{std::string(status)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name + ":")) continue;
    const size_t value = line.find_first_not_of(" \t", name.size() + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return std::nullopt;
}

bool is_zero(const std::string& number) { return std::strtoull(number.c_str(), nullptr, 10) == 0; }

// The line "7f00-7f01 rw-p 0 00:01 12   /a (deleted)" of a mapping. Lines like "VmFlags: rd wr sl "
// follow it.
struct MappingLine {
  bool is_of_kernel = false;  // [vdso] and others
  bool only_executes = false;
};

std::optional<MappingLine> parse_mapping_line(const std::string& line) {
  std::istringstream fields(line);
  std::string addresses, permissions, offset, device, inode, name;
  fields >> addresses >> permissions >> offset >> device >> inode >> name;
  if (addresses.ends_with(':') || addresses.find('-') == std::string::npos) return std::nullopt;
  return MappingLine{.is_of_kernel = name.starts_with("[v") || name.starts_with("[uprobes"),
                     .only_executes = permissions.starts_with("--x")};
}

}  // namespace

void parse_protected_mappings(std::string_view smaps, LostAttributes& lost) {
  std::istringstream lines{std::string(smaps)};
  MappingLine mapping;
  for (std::string line; std::getline(lines, line);) {
    if (const auto next = parse_mapping_line(line)) {
      mapping = *next;
    } else if (line.starts_with("VmFlags:")) {
      const bool is_sealed = (line + ' ').find(" sl ") != std::string::npos;
      lost.has_seals |= is_sealed && !mapping.is_of_kernel;
    } else if (line.starts_with("ProtectionKey:")) {
      // The kernel itself gives a key to memory that can only be executed.
      const bool has_key = !is_zero(line.substr(line.find(':') + 1));
      lost.has_protection_keys |= has_key && !mapping.only_executes;
    }
  }
}

bool has_policies_of_mappings(std::string_view numa_maps) {
  std::istringstream lines{std::string(numa_maps)};
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string address, policy;
    if (!(fields >> address >> policy)) continue;
    if (first.empty()) first = policy;
    if (policy != first) return true;
  }
  return false;
}

std::vector<std::string> lost_in_status(std::string_view status, std::string_view plain) {
  std::vector<std::string> phrases;
  const bool has_filter = !is_zero(field_of(status, "Seccomp").value_or("0"));
  for (const auto& [name, phrase] : kCompared) {
    // The kernel may restrict the speculation of a thread because of its seccomp filter. CRIU
    // carries the filter.
    if (has_filter && std::string_view(name).starts_with("Speculation")) continue;
    if (field_of(status, name) != field_of(plain, name)) phrases.emplace_back(phrase);
  }
  if (!is_zero(field_of(status, "VmLck").value_or("0"))) phrases.emplace_back(kLocking);
  return phrases;
}

Result<LostAttributes> read_lost_attributes(pid_t pid) {
  LostAttributes lost;
  const auto smaps = read_process_file(pid, "smaps");
  if (!smaps) return failure(smaps.error());
  parse_protected_mappings(*smaps, lost);
  if (has_policies_of_mappings(read_process_file(pid, "numa_maps").value_or(""))) {
    lost.phrases.emplace_back(kPolicies);
  }
  const auto threads = read_threads(pid);
  if (!threads) return failure(threads.error());
  const std::string plain = read_process_file(getpid(), "status").value_or("");
  for (const pid_t thread : *threads) {
    const auto status = read_process_file(thread, "status");
    if (!status) continue;  // the thread has ended
    for (std::string& phrase : lost_in_status(*status, plain)) {
      const bool is_new =
          std::find(lost.phrases.begin(), lost.phrases.end(), phrase) == lost.phrases.end();
      if (is_new) lost.phrases.push_back(std::move(phrase));
    }
  }
  return lost;
}

}  // namespace ppmr
