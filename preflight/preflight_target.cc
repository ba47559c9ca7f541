// Findings from the target's answers about files, pids, addresses and limits.
#include <charconv>

#include "preflight/file_digest.h"
#include "preflight/preflight_findings.h"

namespace ppmr {
namespace {

void check_directory(const TreeFacts& tree, const FileFact& file, FileVerdict verdict,
                     Findings& findings) {
  if (verdict != FileVerdict::kMissing && verdict != FileVerdict::kOtherType) return;
  std::string what =
      fmt::format("the directory {}, which {} has open,", file.path, tree.name_of(file.pid));
  for (const ProcessFact& process : tree.processes) {
    const std::string name = tree.name_of(process.pid);
    if (process.working_directory == file.path)
      what = fmt::format("the working directory {} of {}", file.path, name);
    if (process.root_directory == file.path && file.path != "/")
      what = fmt::format("the root directory {} of {}", file.path, name);
  }
  const char* problem =
      verdict == FileVerdict::kMissing ? " does not exist" : " is not a directory";
  findings.stop(what + problem + " at the target", "create it there");
}

void check_content(const std::string& subject, const FileFact& file, FileVerdict verdict,
                   Findings& findings) {
  if (verdict == FileVerdict::kShorter || verdict == FileVerdict::kLonger) {
    const std::string sentence = fmt::format(
        "{} is {} at the target", subject, verdict == FileVerdict::kShorter ? "shorter" : "longer");
    if (file.append_only) {
      findings.warn(sentence,
                    "after the move the process appends to the target's copy; copy the file there "
                    "first if its "
                    "present content matters");
    } else {
      findings.stop(sentence, file.mapped ? "install the same version there"
                                          : "copy it there (while no process writes it), or keep "
                                            "it on a shared file system");
    }
  } else if (verdict == FileVerdict::kOtherContent && file.mapped) {
    findings.stop(subject + " has different content at the target",
                  "install the same version there");
  } else if (verdict == FileVerdict::kOtherContent) {
    findings.warn(subject + " has different content at the target",
                  "copy it there if the content matters");
  } else if (file.writable) {
    findings.warn(subject + " is not on a shared file system",
                  "the process continues with the target's copy");
  } else if (verdict == FileVerdict::kUnchecked && file.mapped) {
    findings.warn(subject + " has the same size at the target, but its content was not compared",
                  "make sure that it is the same version");
  }
}

std::string remedy_for_shared_memory(const FileFact& file) {
  if (file.path.find("/hsperfdata_") != std::string::npos)
    return "start java with -XX:-UsePerfData";
  if (file.path.find("/vader_segment.") != std::string::npos)
    return "start mpirun with --mca btl self,tcp";
  return "keep it on a shared file system, configure the program to work without it, or run the "
         "program in a container, which has its own mount namespace";
}

// ppmr takes locks after the decision (migration/relay/held_locks.h), when the process here is
// dead. In post-copy this process still lives, so taking the lock would wait for it forever. The
// same is true of leases, and of the locks of processes in a container, because CRIU takes these
// before the decision. Returns a remedy; empty: the lock moves.
std::string what_if_locked(const MoveOptions& options, const TreeFacts& tree,
                           const FileFact& file) {
  if (file.lock_is_lease || (file.lock_is_of_process && tree.container)) {
    return "let the program release the lock, or end it here and start it there";
  }
  if (!options.lazily) return "move it without --eager, or let the program release the lock";
  if (options.post_copy) return "move it without --post-copy, or let the program release the lock";
  return "";
}

void check_file(const MoveOptions& options, const TreeFacts& tree, const FileFact& file,
                FileVerdict verdict, Findings& findings) {
  const bool is_locked = verdict == FileVerdict::kShared && file.lock_excludes;
  const std::string remedy = is_locked ? what_if_locked(options, tree, file) : "";
  if (!remedy.empty()) {
    findings.stop(
        fmt::format("{} is one file for both nodes, and {} holds a lock on it: the target could "
                    "not take the lock while the process here has it (--file-locks does not help)",
                    file.path, tree.name_of(file.pid)),
        remedy);
  }
  if (verdict == FileVerdict::kShared) return;
  if (file.type == "directory") return check_directory(tree, file, verdict, findings);
  const char* use = file.mapped     ? "runs or has mapped"
                    : file.writable ? "has open for writing"
                                    : "has open";
  const std::string subject =
      fmt::format("{}, which {} {},", file.path, tree.name_of(file.pid), use);
  if (file.mapped_for_writing && (file.filesystem == "tmpfs" || verdict != FileVerdict::kSame)) {
    findings.stop(
        fmt::format("{}, which {} has mapped for writing, is not on a shared file system, and "
                    "the content of files does not move with a process",
                    file.path, tree.name_of(file.pid)),
        remedy_for_shared_memory(file));
  } else if (verdict == FileVerdict::kMissing) {
    std::string remedy = file.mapped ? "install the same version there"
                                     : "copy it there, or keep it on a shared file system";
    if (is_network_filesystem(file.filesystem))
      remedy = fmt::format("mount the same {} file system there", file.filesystem);
    findings.stop(subject + " does not exist at the target", remedy);
  } else if (verdict == FileVerdict::kOtherType) {
    findings.stop(fmt::format("{} is not a {} at the target", subject, file.type),
                  "create it there with the same type");
  } else if (verdict == FileVerdict::kOtherMode) {
    findings.stop(subject + " has different permissions at the target",
                  fmt::format("chmod {:o} {} there", file.mode, file.path));
  } else if (file.type == "file") {
    check_content(subject, file, verdict, findings);
  }
}

void check_limits(const TreeFacts& tree, const NodeFacts& target, Findings& findings) {
  if (target.has_capability(kCapSysResource)) return;
  const auto number = [](const std::string& text) {
    uint64_t value = ~uint64_t{0};  // "unlimited"
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  std::set<std::string> reported;
  for (const ProcessFact& process : tree.processes) {
    for (const auto& [name, limit] : process.hard_limits) {
      const auto there = target.hard_limits.find(name);
      if (there == target.hard_limits.end() || number(limit) <= number(there->second) ||
          !reported.insert(name).second)
        continue;
      findings.warn(
          fmt::format("{} has the hard limit '{}' = {}, and the target daemon may set at most {}",
                      tree.name_of(process.pid), name, limit, there->second),
          "CRIU restores the lower limit; to keep the higher one, raise the limit of the target "
          "daemon or give the daemon CAP_SYS_RESOURCE");
    }
  }
}

// All trees share the device of the target.
void check_rdma_device(const std::vector<TreeFacts>& trees, const NodeFacts& target,
                       Findings& findings) {
  if (target.rdma_abilities.empty() && !target.rdma_ports.empty()) return;  // unknown
  std::map<std::string, RdmaNeeds> devices;
  std::map<std::string, std::string> users;
  for (const TreeFacts& tree : trees) {
    for (const RdmaCheck& check : tree.rdma_checks) {
      for (const RdmaNeeds& needs : check.needs) {
        add_rdma_needs(needs, devices[needs.device]);
        users.emplace(needs.device, tree.name_of(check.pid));
      }
    }
  }
  for (const auto& [device, needs] : devices) {
    for (const std::string& lack : what_rdma_lacks(needs, target.rdma_abilities)) {
      findings.stop(
          fmt::format("{} uses the RDMA device {}, and {}", users[device], device, lack),
          "choose a target whose device can make the same; `ppmr devices` there shows its "
          "ports");
    }
  }
}

}  // namespace

void check_answers(const MoveOptions& options, const std::vector<TreeFacts>& trees,
                   const PreflightQuestions& questions, const PreflightAnswers& answers,
                   Findings& findings) {
  if (!answers.policy_problem.empty()) {
    findings.stop(answers.policy_problem,
                  "docs/security.md describes the file of --restart-policy");
  }
  if (!answers.pids_taken.empty()) {
    const bool one = answers.pids_taken.size() == 1;
    findings.stop(
        fmt::format("{} {} {} taken at the target", one ? "pid" : "the pids",
                    list_of(answers.pids_taken), one ? "is" : "are"),
        fmt::format(
            "end {0} there (`ps -f -p {1} -s {1}`), or start the program again here: it gets "
            "{2}",
            one ? "the process that has it" : "the processes that have them",
            one ? std::to_string(answers.pids_taken[0]) : "PID", one ? "another pid" : "others"));
  }
  if (!answers.addresses_missing.empty()) {
    const bool one = answers.addresses_missing.size() == 1;
    findings.stop(fmt::format("the target does not have the {} {}", one ? "address" : "addresses",
                              list_of(answers.addresses_missing)),
                  fmt::format("add {} there (ip address add) and route {} packets there",
                              one ? "it" : "them", one ? "its" : "their"));
  }
  for (const ListenerQuestion& taken : answers.listeners_taken) {
    findings.stop(
        fmt::format("{} port {} is already in use at the target", taken.protocol, taken.port),
        "end the process that uses it there (`ss -lnp` shows which)");
  }
  for (size_t i = 0; i < questions.files.size(); ++i) {
    const FileFact& file = questions.files[i];
    for (const TreeFacts& tree : trees) {
      if (tree.contains(file.pid)) check_file(options, tree, file, answers.files[i], findings);
    }
  }
  check_rdma_device(trees, answers.node, findings);
  size_t container = 0;
  for (const TreeFacts& tree : trees) {
    if (tree.container) {
      check_container_at_target(tree, answers.containers[container++], findings);
    }
    check_limits(tree, answers.node, findings);
    check_privileges(tree, answers.node, "target", Severity::kWarns, findings);
  }
}

}  // namespace ppmr
