// The source's part of the preflight: what to ask, and what follows from the answers. Pure: facts
// in, sentences out. Where CRIU itself would fail a finding stops the move; where it would succeed
// and the program might be surprised, it warns.
#include "restart_loader/preflight.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "mount/size_option.h"
#include "restart_loader/file_digest.h"
#include "restart_loader/preflight_wire.h"

namespace ppmr {
namespace {

using nlohmann::json;

constexpr int kCapSysAdmin = 21, kCapSysResource = 24;  // linux/capability.h
constexpr size_t kNamedMax = 8;                         // of many alike so many are named

class Findings {
 public:
  void stop(std::string sentence, std::string remedy) {
    add({Severity::kStops, std::move(sentence), std::move(remedy)});
  }
  void warn(std::string sentence, std::string remedy = "") {
    add({Severity::kWarns, std::move(sentence), std::move(remedy)});
  }
  void add(Finding finding) {
    if (told_.insert(finding.sentence).second) findings_.push_back(std::move(finding));
  }
  std::vector<Finding> take() {
    std::stable_sort(findings_.begin(), findings_.end(), [](const Finding& a, const Finding& b) {
      return a.severity == Severity::kStops && b.severity != Severity::kStops;
    });
    return std::move(findings_);
  }

 private:
  std::set<std::string> told_;
  std::vector<Finding> findings_;
};

template <typename Item>
std::string list(const std::vector<Item>& items) {
  const size_t shown = std::min(items.size(), kNamedMax);
  std::string text = fmt::format("{}", fmt::join(items.begin(), items.begin() + shown, ", "));
  if (items.size() > shown) text += fmt::format(" and {} more", items.size() - shown);
  return text;
}

// Numbers at the beginning of a version: "6.1.0-18-amd64" -> {6, 1}.
std::pair<int, int> major_and_minor(const std::string& version) {
  int major_number = -1, minor_number = -1;
  const char* end = version.data() + version.size();
  const auto first = std::from_chars(version.data(), end, major_number);
  if (first.ptr < end) std::from_chars(first.ptr + 1, end, minor_number);
  return {major_number, minor_number};
}

// --- the node ---

void check_criu(const NodeFacts& node, const std::string& where, Findings& findings) {
  if (node.criu_path.empty()) {
    findings.stop(fmt::format("there is no CRIU on the {} ({})", where, node.host),
                  "run third_party/install there, or install Debian's criu");
    return;
  }
  if (!node.criu_problem.empty()) {
    findings.stop(fmt::format("CRIU does not work on the {} ({}), says {} check: {}", where,
                              node.host, node.criu_path, node.criu_problem),
                  "run third_party/install there: it finds a CRIU that works on its kernel");
  }
  if (node.user != 0 && !node.has_capability(kCapSysAdmin)) {
    findings.stop(
        fmt::format("CRIU would be run by user {} on the {} ({})", node.user, where, node.host),
        "run ppmr as root there");
  }
}

void compare_nodes(const MoveOptions& options, const NodeFacts& source, const NodeFacts& target,
                   Findings& findings) {
  check_criu(target, "target", findings);
  const auto criu_here = major_and_minor(source.criu_version);
  const auto criu_there = major_and_minor(target.criu_version);
  const std::string versions =
      fmt::format("CRIU is {} here and {} at the target", source.criu_version, target.criu_version);
  if (!source.criu_version.empty() && !target.criu_version.empty()) {
    if (criu_here.first != criu_there.first) {
      findings.stop(versions, "install the same on both nodes (third_party/install)");
    } else if (criu_there < criu_here) {
      findings.warn(versions, "an older CRIU may not know what a newer one has written");
    }
  }
  if (source.architecture != target.architecture) {
    findings.stop(fmt::format("the processor here is {}, that of the target {}",
                              source.architecture, target.architecture),
                  "choose a target of the same architecture");
    return;
  }
  std::vector<std::string> missing;
  std::set_difference(source.cpu_features.begin(), source.cpu_features.end(),
                      target.cpu_features.begin(), target.cpu_features.end(),
                      std::back_inserter(missing));
  if (!missing.empty()) {
    findings.stop(
        "the target's processor lacks instructions that programs may be using: " + list(missing),
        "choose a target whose processor is of the same kind or newer");
  }
  if (major_and_minor(target.kernel) < major_and_minor(source.kernel)) {
    findings.warn(fmt::format("the target's kernel ({}) is older than that of this node ({})",
                              target.kernel, source.kernel),
                  "a program that uses what is new in this one fails there");
  }
  if (options.lazily && !target.has_feature(kLazyFeature)) {
    findings.warn("the target's kernel cannot restart lazily (userfaultfd)",
                  "the process will be frozen until all of its memory is there");
  }
}

void check_space(const std::vector<TreeFacts>& trees, const NodeFacts& target, Findings& findings) {
  uint64_t needed = 0;
  for (const TreeFacts& tree : trees) needed += tree.memory_bytes;
  if (target.store_free_bytes >= 0 && needed > static_cast<uint64_t>(target.store_free_bytes)) {
    findings.stop(
        fmt::format("{} of memory are to be moved, but the target's image store has room for {}",
                    format_size(needed),
                    format_size(static_cast<uint64_t>(target.store_free_bytes))),
        "remove checkpoints there, or give the target daemon a larger --memory-limit or a "
        "--spill-dir");
  }
  if (target.memory_available_bytes == 0) return;
  const std::string both =
      fmt::format("{} of memory are to be moved, and the target has {} free", format_size(needed),
                  format_size(target.memory_available_bytes));
  if (needed > target.memory_available_bytes) {
    findings.stop(both, "free memory there, or choose another target");
  } else if (needed > target.memory_available_bytes / 2) {
    findings.warn(both, "until the checkpoint is removed its memory is held twice");
  }
}

// --- the processes ---

void check_privileges(const TreeFacts& tree, const NodeFacts& node, const std::string& where,
                      Severity severity, Findings& findings) {
  if (node.has_capability(kCapSysResource)) return;
  for (const ProcessFact& process : tree.processes) {
    if (process.uid == node.user) continue;
    findings.add({severity,
                  fmt::format("{} runs as user {}, and CRIU lacks CAP_SYS_RESOURCE on the {}",
                              tree.name_of(process.pid), process.uid, where),
                  "give ppmr this capability there (containers often lack it)"});
    return;
  }
}

void check_processes(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  for (const ProcessFact& process : tree.processes) {
    const std::string name = tree.name_of(process.pid);
    if (process.tracer != 0) {
      findings.stop(fmt::format("{} is being traced by process {} (a debugger or strace)", name,
                                process.tracer),
                    "detach that first");
    }
    if (process.seccomp_mode == 2) {
      findings.warn(name + " has a seccomp filter",
                    "the kernels of both nodes have to let CRIU read and set it "
                    "(CONFIG_CHECKPOINT_RESTORE and CONFIG_SECCOMP_FILTER)");
    }
  }
  if (tree.processes.empty()) return;
  const ProcessFact& root = tree.processes.front();
  if (!options.shell_job && !tree.contains(root.session)) {
    findings.stop(fmt::format("{} belongs to the session of process {}, which does not move with "
                              "it",
                              tree.name_of(root.pid), root.session),
                  "give -- --shell-job, or start it in a session of its own (setsid)");
  }
  if (tree.has_namespace("pid") && !root.namespace_pids.empty() &&
      root.namespace_pids.back() != 1) {
    findings.stop(fmt::format("{} lives in a pid namespace (a container?) whose first process is "
                              "another",
                              tree.name_of(root.pid)),
                  "move the first process of that namespace, with all that is in it, or run ppmr "
                  "inside of it");
  }
  if (tree.has_namespace("mnt")) {
    findings.warn(fmt::format("{} has a mount namespace of its own", tree.name_of(root.pid)),
                  "its files were not compared with those of the target; what is mounted in it has "
                  "to be there, too");
  }
  if (tree.has_namespace("net")) {
    findings.warn(fmt::format("{} has a network namespace of its own", tree.name_of(root.pid)),
                  "its addresses and ports were not compared with those of the target");
  }
}

void check_peculiarities(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  // A tree that holds the master side brings its terminals along.
  const bool own_terminals = std::any_of(
      tree.peculiarities.begin(), tree.peculiarities.end(),
      [](const auto& item) { return item.kind == "terminal" && item.object.ends_with("ptmx"); });
  for (const Peculiarity& item : tree.peculiarities) {
    const std::string name = tree.name_of(item.pid);
    if (item.kind == "terminal" && !own_terminals) {
      findings.stop(fmt::format("{} uses the terminal {}, and there is none at the target", name,
                                item.object),
                    "start it with its input and output in files, or below screen or tmux, and "
                    "move that");
    } else if (item.kind == "device" && !options.external_files) {
      findings.stop(
          fmt::format("{} has the device {} open, whose state CRIU cannot move", name, item.object),
          "let it close the device first");
    } else if (item.kind == "lock" && !options.file_locks) {
      findings.stop(fmt::format("{} holds a lock on {}", name, item.object),
                    "give -- --file-locks (nobody else may need the lock meanwhile)");
    } else if (item.kind == "inotify" || item.kind == "fanotify") {
      if (options.force_irmap) continue;
      findings.warn(fmt::format("{} watches files ({})", name, item.kind),
                    "the watched paths have to be at the target; if CRIU cannot find their names, "
                    "give -- --force-irmap");
    } else if (item.kind == "socket") {
      findings.stop(
          fmt::format("{} has a socket of a kind that CRIU cannot move ({})", name, item.object),
          "let it close the socket first");
    } else if (item.kind == "anonymous file") {
      findings.stop(fmt::format("{} uses {}, which CRIU cannot move", name, item.object),
                    item.object == "[io_uring]" ? "start the program without io_uring"
                                                : "let it close this first");
    } else if (item.kind == "system v memory" && !tree.has_namespace("ipc")) {
      findings.stop(
          fmt::format("{} uses System V shared memory, which all of this node can see", name),
          "start it in an IPC namespace of its own (unshare --ipc), then it can be moved "
          "with that");
    } else if (item.kind == "ppmr mount") {
      findings.stop(fmt::format("{} has {} open, in a mount of ppmr's", name, item.object),
                    "let it close the file: the mount does not move");
    }
  }
}

void check_deleted_files(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  for (const FileFact& file : tree.files) {
    if (!file.deleted || file.type != "file") continue;
    const std::string sentence =
        fmt::format("{} uses {} ({}), which was deleted", tree.name_of(file.pid), file.path,
                    format_size(file.size_bytes));
    if (file.links > 0) {
      if (!options.link_remap)
        findings.stop(sentence + " but has another name", "give -- --link-remap");
    } else if (file.size_bytes > options.ghost_limit_bytes) {
      const uint64_t mebibytes = (file.size_bytes >> 20) + 1;
      findings.stop(sentence + ", so it has to travel with the checkpoint",
                    fmt::format("give -- --ghost-limit {}M", mebibytes));
    }
  }
}

void check_connections(const MoveOptions& options, const TreeFacts& tree, Findings& findings) {
  if (options.tcp_established || options.tcp_close) return;
  std::vector<std::string> connections;
  for (const InternetSocket& socket : tree.sockets) {
    if (!socket.is_connection()) continue;
    connections.push_back(fmt::format("{}:{} with {}:{}", socket.local_address, socket.local_port,
                                      socket.remote_address, socket.remote_port));
  }
  if (connections.empty()) return;
  findings.stop(
      fmt::format("{} has TCP connections ({})", tree.name_of(tree.root), list(connections)),
      "give -- --tcp-established and bring their addresses to the target, or -- "
      "--tcp-close to drop them");
}

// --- what has to be the same at the target ---

void judge_directory(const TreeFacts& tree, const FileFact& file, FileVerdict verdict,
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
  findings.stop(what + " is not at the target", "make it there");
}

void judge_content(const std::string& subject, const FileFact& file, FileVerdict verdict,
                   Findings& findings) {
  if (verdict == FileVerdict::kShorter || verdict == FileVerdict::kLonger) {
    const std::string sentence = fmt::format(
        "{} is {} at the target", subject, verdict == FileVerdict::kShorter ? "shorter" : "longer");
    if (file.append_only) {
      findings.warn(sentence, "the process goes on appending to what is there");
    } else {
      findings.stop(sentence, file.mapped ? "install the same version there"
                                          : "copy it there as it is here (while nobody writes it), "
                                            "or keep it on a file system of both nodes");
    }
  } else if (verdict == FileVerdict::kOtherContent && file.mapped) {
    findings.stop(subject + " has other content at the target", "install the same version there");
  } else if (verdict == FileVerdict::kOtherContent) {
    findings.warn(subject + " has other content at the target", "copy it there if that matters");
  } else if (file.writable) {
    findings.warn(subject + " is not shared with the target",
                  "the process goes on with the target's copy");
  } else if (verdict == FileVerdict::kUnchecked && file.mapped) {
    findings.warn(subject + " is of the same size at the target, but no more could be compared",
                  "be sure that it is the same version");
  }
}

std::string remedy_for_shared_memory(const FileFact& file) {
  if (file.path.find("/hsperfdata_") != std::string::npos)
    return "start java with -XX:-UsePerfData";
  if (file.path.find("/vader_segment.") != std::string::npos)
    return "start mpirun with --mca btl self,tcp";
  return "keep it on a file system of both nodes, let the program do without it, or move it with a "
         "mount namespace of its own (a container)";
}

void judge_file(const TreeFacts& tree, const FileFact& file, FileVerdict verdict,
                Findings& findings) {
  if (verdict == FileVerdict::kShared) return;
  if (file.type == "directory") return judge_directory(tree, file, verdict, findings);
  const char* use = file.mapped     ? "runs or has mapped"
                    : file.writable ? "has open for writing"
                                    : "has open";
  const std::string subject =
      fmt::format("{}, which {} {},", file.path, tree.name_of(file.pid), use);
  if (file.mapped_for_writing && (file.filesystem == "tmpfs" || verdict != FileVerdict::kSame)) {
    findings.stop(fmt::format("{}, which {} has mapped to write into it, is not shared with the "
                              "target, and what is in files does not move with a process",
                              file.path, tree.name_of(file.pid)),
                  remedy_for_shared_memory(file));
  } else if (verdict == FileVerdict::kMissing) {
    std::string remedy = file.mapped ? "install it there in the same version"
                                     : "copy it there, or keep it on a file system of both nodes";
    if (is_network_filesystem(file.filesystem))
      remedy = fmt::format("mount the same {} file system there", file.filesystem);
    findings.stop(subject + " is not at the target", remedy);
  } else if (verdict == FileVerdict::kOtherType) {
    findings.stop(fmt::format("{} is no {} at the target", subject, file.type),
                  "make it the same there");
  } else if (verdict == FileVerdict::kOtherMode) {
    findings.stop(subject + " has other permissions at the target",
                  fmt::format("chmod {:o} {} there", file.mode, file.path));
  } else if (file.type == "file") {
    judge_content(subject, file, verdict, findings);
  }
}

void check_limits(const TreeFacts& tree, const NodeFacts& target, Findings& findings) {
  if (target.has_capability(kCapSysResource)) return;
  const auto number = [](const std::string& text) {
    uint64_t value = ~uint64_t{0};  // "unlimited"
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  };
  std::set<std::string> told;
  for (const ProcessFact& process : tree.processes) {
    for (const auto& [name, limit] : process.hard_limits) {
      const auto there = target.hard_limits.find(name);
      if (there == target.hard_limits.end() || number(limit) <= number(there->second) ||
          !told.insert(name).second)
        continue;
      findings.warn(
          fmt::format("{} has the hard limit '{}' of {}, and the target's daemon may go "
                      "up to {} only",
                      tree.name_of(process.pid), name, limit, there->second),
          "CRIU restores it with the lower one; to keep it, raise the limit of the target "
          "daemon, or give it CAP_SYS_RESOURCE");
    }
  }
}

void check_answers(const std::vector<TreeFacts>& trees, const PreflightQuestions& questions,
                   const PreflightAnswers& answers, Findings& findings) {
  if (!answers.pids_taken.empty()) {
    findings.stop(fmt::format("the pids {} are taken at the target", list(answers.pids_taken)),
                  "end the processes that have them, or start the target daemon in a pid namespace "
                  "of its own");
  }
  if (!answers.addresses_missing.empty()) {
    findings.stop(
        fmt::format("the addresses {} are not at the target", list(answers.addresses_missing)),
        "add them there (ip address add) and lead their packets there");
  }
  for (const ListenerQuestion& taken : answers.listeners_taken) {
    findings.stop(
        fmt::format("somebody at the target uses {} port {} already", taken.protocol, taken.port),
        "end that first");
  }
  for (size_t i = 0; i < questions.files.size(); ++i) {
    const FileFact& file = questions.files[i];
    for (const TreeFacts& tree : trees) {
      if (tree.contains(file.pid)) judge_file(tree, file, answers.files[i], findings);
    }
  }
  for (const TreeFacts& tree : trees) {
    check_limits(tree, answers.node, findings);
    check_privileges(tree, answers.node, "target", Severity::kWarns, findings);
  }
}

void check_source(const MoveOptions& options, const NodeFacts& source,
                  const std::vector<TreeFacts>& trees, Findings& findings) {
  check_criu(source, "source", findings);
  if (options.pre_copy && !source.has_feature(kMemoryTrackingFeature)) {
    findings.stop(
        "--pre-copy needs a kernel that tracks which memory was written, and that of "
        "this node does not (CONFIG_MEM_SOFT_DIRTY)",
        "move without --pre-copy");
  }
  for (const TreeFacts& tree : trees) {
    check_privileges(tree, source, "source", Severity::kStops, findings);
    check_processes(options, tree, findings);
    check_peculiarities(options, tree, findings);
    check_deleted_files(options, tree, findings);
    check_connections(options, tree, findings);
  }
}

}  // namespace

void MoveOptions::read(const std::vector<std::string>& criu_options) {
  for (size_t i = 0; i < criu_options.size(); ++i) {
    const std::string& option = criu_options[i];
    tcp_established |= option == "--tcp-established";
    tcp_close |= option == "--tcp-close";
    shell_job |= option == "--shell-job" || option == "-j";
    ext_unix_sk |= option.starts_with("--ext-unix-sk") || option.starts_with("-x");
    file_locks |= option == "--file-locks" || option == "-l";
    link_remap |= option == "--link-remap";
    force_irmap |= option == "--force-irmap";
    external_files |= option.starts_with("--external");
    constexpr std::string_view kGhostLimit = "--ghost-limit";
    std::string limit;
    if (option == kGhostLimit && i + 1 < criu_options.size()) limit = criu_options[i + 1];
    if (option.starts_with(std::string(kGhostLimit) + "="))
      limit = option.substr(kGhostLimit.size() + 1);
    if (const auto bytes = parse_size(limit); !limit.empty() && bytes) ghost_limit_bytes = *bytes;
  }
}

PreflightQuestions questions_about(const std::vector<TreeFacts>& trees,
                                   const MoveOptions& options) {
  PreflightQuestions questions;
  questions.boot_id = read_boot_id();
  std::set<pid_t> pids;
  std::set<std::string> addresses;
  std::map<std::string, FileFact> files;
  for (const TreeFacts& tree : trees) {
    if (!tree.has_namespace("pid") && !options.own_pid_namespace) {
      for (const ProcessFact& process : tree.processes) {
        pids.insert(process.pid);
        pids.insert(process.threads.begin(), process.threads.end());
      }
    }
    for (const FileFact& file : tree.files) {
      if (!tree.has_namespace("mnt") && !file.deleted && file.type != "other")
        files.emplace(file.path, file);
    }
    if (tree.has_namespace("net")) continue;
    for (const InternetSocket& socket : tree.sockets) {
      const bool connection = socket.is_connection();
      const bool any = socket.local_address == "0.0.0.0" || socket.local_address == "::";
      if (!any && !(connection && options.tcp_close)) addresses.insert(socket.local_address);
      if (!connection && socket.local_port != 0)
        questions.listeners.push_back({socket.protocol, socket.local_address, socket.local_port});
    }
  }
  questions.pids.assign(pids.begin(), pids.end());
  questions.addresses.assign(addresses.begin(), addresses.end());
  for (auto& [path, file] : files) questions.files.push_back(std::move(file));
  return questions;
}

json to_request(const PreflightQuestions& questions) {
  return {{"version", kPreflightVersion}, {"questions", questions}};
}

Result<PreflightAnswers> read_answers(const json& answer, const PreflightQuestions& questions) {
  try {
    if (!answer.at("ok").get<bool>()) {
      return failure(EPROTO, "the target could not check whether the move is possible: " +
                                 answer.at("error").get<std::string>());
    }
    auto answers = answer.at("answers").get<PreflightAnswers>();
    if (answers.files.size() != questions.files.size())
      return failure(EPROTO, "the target's answer does not fit what it was asked");
    for (FileVerdict verdict : answers.files) {
      if (verdict < FileVerdict::kSame || verdict >= FileVerdict::kVerdictCount)
        return failure(EPROTO, "the target judged a file in a way that this ppmr does not know");
    }
    std::sort(answers.node.cpu_features.begin(), answers.node.cpu_features.end());
    return answers;
  } catch (const json::exception& error) {
    return failure(EPROTO, std::string("the target's answer is not to be understood (is it of "
                                       "another version?): ") +
                               error.what());
  }
}

std::vector<Finding> find_obstacles(const MoveOptions& options, const NodeFacts& source,
                                    const std::vector<TreeFacts>& trees,
                                    const PreflightQuestions& questions,
                                    const PreflightAnswers& answers) {
  Findings findings;
  check_source(options, source, trees, findings);
  compare_nodes(options, source, answers.node, findings);
  check_space(trees, answers.node, findings);
  check_answers(trees, questions, answers, findings);
  return findings.take();
}

std::vector<Finding> find_obstacles_at_source(const MoveOptions& options, const NodeFacts& source,
                                              const std::vector<TreeFacts>& trees) {
  Findings findings;
  check_source(options, source, trees, findings);
  return findings.take();
}

}  // namespace ppmr
