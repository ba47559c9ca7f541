// The source's part of the preflight: the questions, and the findings that follow from the answers.
// These functions do no I/O. A finding stops the move if CRIU would fail, or if a second copy would
// surely start. It is a warning if CRIU would succeed but the program may not expect the result.
#include "preflight/preflight.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "daemon/command_line/size_option.h"
#include "preflight/preflight_findings.h"
#include "preflight/preflight_wire.h"
#include "processes/process_identity.h"

namespace ppmr {
namespace {

using nlohmann::json;

// Returns the first two numbers of a version: "6.1.0-18-amd64" -> {6, 1}.
std::pair<int, int> major_and_minor(const std::string& version) {
  int major_number = -1, minor_number = -1;
  const char* end = version.data() + version.size();
  const auto first = std::from_chars(version.data(), end, major_number);
  if (first.ptr < end) std::from_chars(first.ptr + 1, end, minor_number);
  return {major_number, minor_number};
}

// --- the node ---

// A node that has ppmr from a package has no third_party/install.
constexpr const char* kNewerCriu =
    "CRIU 4.2 or later there if its kernel is newer than that of its release "
    "(`third_party/install` of ppmr's source unpacks one, or set PPMR_CRIU to its path)";

void check_criu(const NodeFacts& node, const std::string& where, Findings& findings) {
  if (node.criu_path.empty()) {
    findings.stop(fmt::format("no CRIU found on the {} ({})", where, node.host),
                  fmt::format("install Debian's criu there, or {}", kNewerCriu));
    return;
  }
  if (!node.criu_problem.empty()) {
    findings.stop(fmt::format("CRIU does not work on the {} ({}): {} check failed: {}", where,
                              node.host, node.criu_path, node.criu_problem),
                  fmt::format("install {}", kNewerCriu));
  }
  if (node.user != 0 && !node.has_capability(kCapSysAdmin)) {
    findings.stop(fmt::format("CRIU would run as user {} on the {} ({}), but it needs root",
                              node.user, where, node.host),
                  "run ppmr as root there");
  }
}

void compare_nodes(const MoveOptions& options, const NodeFacts& source,
                   const PreflightAnswers& answers, Findings& findings) {
  const NodeFacts& target = answers.node;
  check_criu(target, "target", findings);
  const auto criu_here = major_and_minor(source.criu_version);
  const auto criu_there = major_and_minor(target.criu_version);
  const std::string versions =
      fmt::format("CRIU is {} here and {} at the target", source.criu_version, target.criu_version);
  if (!source.criu_version.empty() && !target.criu_version.empty()) {
    if (criu_here.first != criu_there.first) {
      findings.stop(versions, "install the same version on both nodes");
    } else if (criu_there < criu_here) {
      findings.warn(versions, "an older CRIU may fail to read the images of a newer one");
    }
  }
  if (source.architecture != target.architecture) {
    findings.stop(fmt::format("the processor is {} here and {} at the target", source.architecture,
                              target.architecture),
                  "choose a target of the same architecture");
    return;
  }
  std::vector<std::string> missing;
  std::set_difference(source.cpu_features.begin(), source.cpu_features.end(),
                      target.cpu_features.begin(), target.cpu_features.end(),
                      std::back_inserter(missing));
  if (!missing.empty()) {
    findings.stop(
        "the target's processor lacks instruction sets that programs may use: " + list_of(missing),
        "choose a target with the same or a newer processor");
  }
  if (!answers.processor_problem.empty()) {
    const std::string sentence =
        "the target's processor cannot run programs from this node's processor: criu cpuinfo check "
        "failed there: " +
        answers.processor_problem;
    if (options.cpu_cap) {
      findings.warn(sentence, "you passed the --cpu-cap option, so CRIU decides at the restore");
    } else {
      findings.stop(sentence, "choose a target with the same or a newer processor");
    }
  }
  if (major_and_minor(target.kernel) < major_and_minor(source.kernel)) {
    findings.warn(fmt::format("the target's kernel ({}) is older than the kernel of this node ({})",
                              target.kernel, source.kernel),
                  "a program that uses newer system calls fails there");
  }
  if (options.lazily && !target.has_feature(kLazyFeature)) {
    findings.warn("the target's kernel does not support a lazy restore (userfaultfd)",
                  "the process stays frozen until all of its memory is in place");
  }
}

void check_pipes(const MoveOptions& options, const NodeFacts& source,
                 const std::vector<TreeFacts>& trees, Findings& findings) {
  if (!options.memory_apart) return;
  for (const TreeFacts& tree : trees) {
    if (source.can_hold_in_pipes(tree.memory_bytes)) continue;
    findings.warn(
        fmt::format("the memory of {} ({}) goes through CRIU's images, which takes longer: for "
                    "more, CRIU would need more pipes than this node allows",
                    tree.name_of(tree.root), format_size(tree.memory_bytes)),
        "sysctl fs.pipe-max-size=16777216, or run ppmr migrate with CAP_SYS_RESOURCE");
  }
}

void check_space(uint64_t needed, const NodeFacts& target, Findings& findings) {
  if (target.store_free_bytes >= 0 && needed > static_cast<uint64_t>(target.store_free_bytes)) {
    findings.stop(
        fmt::format("the move needs {} of memory, but the target's image store has {} free",
                    format_size(needed),
                    format_size(static_cast<uint64_t>(target.store_free_bytes))),
        "remove checkpoints there, or start the target daemon with a larger --memory-limit or with "
        "--spill-dir");
  }
  if (target.memory_available_bytes == 0) return;
  const std::string both =
      fmt::format("the move needs {} of memory, and the target has {} free", format_size(needed),
                  format_size(target.memory_available_bytes));
  if (needed > target.memory_available_bytes) {
    findings.stop(both, "free memory there, or choose another target");
  } else if (needed > target.memory_available_bytes / 2) {
    findings.warn(both, "until the checkpoint is removed, the target needs that memory twice");
  }
}

void check_source(const MoveOptions& options, const NodeFacts& source,
                  const std::vector<TreeFacts>& trees, Findings& findings) {
  check_criu(source, "source", findings);
  for (const TreeFacts& tree : trees) {
    check_privileges(tree, source, "source", Severity::kStops, findings);
    check_tree(options, tree, findings);
    check_managers(options, tree, findings);
    if (tree.container) check_container(tree, findings);
  }
}

}  // namespace

uint64_t memory_to_move_bytes(const MoveOptions& options, const NodeFacts& source,
                              const TreeFacts& tree) {
  // CRIU's images have a page that several processes share once for each of them.
  const bool is_apart = options.memory_apart && source.can_hold_in_pipes(tree.memory_bytes);
  return is_apart ? tree.distinct_memory_bytes : tree.memory_bytes;
}

void MoveOptions::read(const std::vector<std::string>& criu_options) {
  for (size_t i = 0; i < criu_options.size(); ++i) {
    const std::string& option = criu_options[i];
    tcp_established |= option == "--tcp-established";
    tcp_close |= option == "--tcp-close";
    shell_job |= option == "--shell-job" || option == "-j";
    ext_unix_sk |= option.starts_with("--ext-unix-sk") || option.starts_with("-x");
    skip_in_flight |= option == "--skip-in-flight";
    file_locks |= option == "--file-locks" || option == "-l";
    link_remap |= option == "--link-remap";
    force_irmap |= option == "--force-irmap";
    cpu_cap |= option.starts_with("--cpu-cap");
    // "--name value" or "--name=value".
    const auto value_of = [&](const std::string& name) -> std::string {
      if (option == name && i + 1 < criu_options.size()) return criu_options[i + 1];
      return option.starts_with(name + "=") ? option.substr(name.size() + 1) : "";
    };
    // "dev[8/1]:disk" -> "dev[8/1]".
    if (const std::string external = value_of("--external"); !external.empty())
      externals.insert(external.substr(0, external.find(']') + 1));
    const std::string limit = value_of("--ghost-limit");
    if (const auto bytes = parse_size(limit); !limit.empty() && bytes) ghost_limit_bytes = *bytes;
  }
}

namespace {

// Returns whether the address belongs to no interface, so that a node need not have it.
bool is_group_or_any(const std::string& address) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, address.c_str(), &four) == 1) {
    const uint32_t number = ntohl(four.s_addr);
    return number == INADDR_ANY || number == INADDR_BROADCAST || IN_MULTICAST(number);
  }
  return inet_pton(AF_INET6, address.c_str(), &six) == 1 &&
         (IN6_IS_ADDR_UNSPECIFIED(&six) || IN6_IS_ADDR_MULTICAST(&six));
}

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(),
                     [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
}

}  // namespace

PreflightQuestions make_questions(const std::vector<TreeFacts>& trees, const MoveOptions& options) {
  PreflightQuestions questions;
  questions.boot_id = read_boot_id();
  std::set<pid_t> pids;
  std::set<std::string> addresses;
  std::map<std::string, FileFact> files;
  for (const TreeFacts& tree : trees) {
    for (const ProcessFact& process : tree.processes) {
      questions.processes.push_back(
          {process.pid, process.uid, tree.container ? tree.container->bundle.directory : ""});
    }
    if (tree.container) questions.containers.push_back(make_question(*tree.container));
    if (!tree.has_namespace("pid") && !options.own_pid_namespace) {
      for (const ProcessFact& process : tree.processes) {
        pids.insert(process.pid);
        pids.insert(process.threads.begin(), process.threads.end());
      }
    }
    for (const FileFact& file : tree.files) {
      if (tree.has_host_paths() && !file.deleted && file.type != "other")
        files.emplace(file.path, file);
    }
    if (tree.has_namespace("net")) continue;
    for (const InternetSocket& socket : tree.sockets) {
      const bool connection = socket.is_connection();
      if (!is_group_or_any(socket.local_address) && !(connection && options.tcp_close))
        addresses.insert(socket.local_address);
      if (!connection && socket.local_port != 0)
        questions.listeners.push_back({socket.protocol, socket.local_address, socket.local_port});
    }
  }
  questions.pids.assign(pids.begin(), pids.end());
  questions.addresses.assign(addresses.begin(), addresses.end());
  for (auto& [path, file] : files) questions.files.push_back(std::move(file));
  return questions;
}

PreflightRequest make_request(const PreflightQuestions& questions) {
  PreflightRequest request{kPreflightVersion, questions};
  json& files = request.questions.at("files");
  for (size_t i = 0; i < questions.files.size(); ++i) {
    const std::string& path = questions.files[i].path;
    if (is_ascii(path)) continue;
    std::string digits;
    for (const char byte : path) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    files.at(i)[kPathBytes] = digits;
  }
  return request;
}

Result<PreflightAnswers> read_answers(const json& answer, const PreflightQuestions& questions) {
  try {
    if (!answer.at("ok").get<bool>()) {
      return failure(
          EPROTO, "the target could not run its checks: " + answer.at("error").get<std::string>());
    }
    auto answers = answer.at("answers").get<PreflightAnswers>();
    if (answers.files.size() != questions.files.size())
      return failure(
          EPROTO,
          fmt::format(
              "the target checked {} files instead of {} (install the same ppmr on both nodes)",
              answers.files.size(), questions.files.size()));
    if (answers.containers.size() != questions.containers.size())
      return failure(EPROTO, fmt::format("the target checked {} containers instead of {} (install "
                                         "the same ppmr on both nodes)",
                                         answers.containers.size(), questions.containers.size()));
    for (FileVerdict verdict : answers.files) {
      if (verdict < FileVerdict::kSame || verdict >= FileVerdict::kVerdictCount)
        return failure(EPROTO,
                       "the target's answer has an unknown verdict on a file (install the same "
                       "ppmr on both nodes)");
    }
    std::sort(answers.node.cpu_features.begin(), answers.node.cpu_features.end());
    return answers;
  } catch (const json::exception& error) {
    return failure(
        EPROTO,
        std::string("cannot parse the target's answer (install the same ppmr on both nodes): ") +
            error.what());
  }
}

std::vector<Finding> check_move(const MoveOptions& options, const NodeFacts& source,
                                const std::vector<TreeFacts>& trees,
                                const PreflightQuestions& questions,
                                const PreflightAnswers& answers) {
  Findings findings;
  check_source(options, source, trees, findings);
  compare_nodes(options, source, answers, findings);
  check_pipes(options, source, trees, findings);
  uint64_t needed = 0;
  for (const TreeFacts& tree : trees) needed += memory_to_move_bytes(options, source, tree);
  check_space(needed, answers.node, findings);
  if (!answers.drained_mount.empty()) {
    findings.stop(fmt::format("the target {} is drained and begins nothing new", answers.node.host),
                  "run ppmr drain --resume " + answers.drained_mount + " there, or choose another");
  }
  check_answers(options, trees, questions, answers, findings);
  return findings.take();
}

std::vector<Finding> check_room_besides(uint64_t others_bytes, uint64_t needed_bytes,
                                        const NodeFacts& target) {
  if (others_bytes == 0) return {};  // check_move() has compared what one tree needs
  Findings findings;
  const std::string both =
      fmt::format("the process needs {} of memory, and the processes that move before it need {}",
                  format_size(needed_bytes), format_size(others_bytes));
  const uint64_t sum = others_bytes + needed_bytes;
  const auto store_free_bytes =
      static_cast<uint64_t>(std::max<int64_t>(target.store_free_bytes, 0));
  if (target.store_free_bytes >= 0 && sum > store_free_bytes) {
    findings.stop(fmt::format("{}, but the target's image store has {} free", both,
                              format_size(store_free_bytes)),
                  "move it later, or start the target daemon with a larger --memory-limit or with "
                  "--spill-dir");
  }
  if (target.memory_available_bytes != 0 && sum > target.memory_available_bytes) {
    findings.stop(fmt::format("{}, but the target has {} free", both,
                              format_size(target.memory_available_bytes)),
                  "free memory there, or choose another target for it");
  }
  return findings.take();
}

}  // namespace ppmr
