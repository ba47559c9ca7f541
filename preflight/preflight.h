// The checks before a move. Their findings are sentences for the operator. The preflight has three
// steps:
//
//   source: make_questions(trees)  ->  target: answer_preflight()  ->  source: check_move()
//
// The source sends what it expects, with digests of files. The target answers only whether each
// file is the same or different, and never sends the content of its files.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "preflight/node_facts.h"
#include "preflight/policy/check_restart.h"
#include "preflight/policy/restart_policy.h"
#include "preflight/tree_facts.h"
#include "processes/finding.h"

namespace ppmr {

// What a move may lose if the user accepts it (--allow-loss): the restrictions of Landlock; the
// promise never to make memory executable (prctl(PR_SET_MDWE)); seals of mappings (mseal(2)); keys
// that protect mappings (pkeys(7)); faults of the instructions RDTSC and CPUID; the System V
// semaphores and message queues of the node.
inline constexpr const char* kLandlock = "landlock";
inline constexpr const char* kMdwe = "mdwe";
inline constexpr const char* kSeals = "seals";
inline constexpr const char* kProtectionKeys = "protection-keys";
inline constexpr const char* kCpuFaults = "cpu-faults";
inline constexpr const char* kSystemV = "system-v";
inline constexpr std::array kAcceptableLosses = {kLandlock,       kMdwe,      kSeals,
                                                 kProtectionKeys, kCpuFaults, kSystemV};

// The options of a move that the checks depend on.
struct MoveOptions {
  bool lazily = true;
  bool post_copy = false;          // the source keeps its tasks until all memory has moved
  bool memory_apart = true;        // CRIU may leave private memory out of its images
  bool own_pid_namespace = false;  // restore in a new pid namespace, where all pids are free
  // Options of CRIU that permit things which CRIU refuses by default.
  bool tcp_established = false;
  bool tcp_close = false;
  bool shell_job = false;
  bool ext_unix_sk = false;
  bool file_locks = false;
  bool skip_in_flight = false;
  bool link_remap = false;
  bool force_irmap = false;
  std::string moved_unit;                // the service that moves with its processes: "web.service"
  bool cpu_cap = false;                  // --cpu-cap: the operator chooses which CPU features count
  std::set<std::string> allowed_losses;  // items of kAcceptableLosses
  std::set<std::string> externals;       // resources of --external: "dev[8/1]", "file[1f:2a]"
  uint64_t ghost_limit_bytes = 1 << 20;  // default: the same as CRIU's

  // Reads the options from the arguments after -- on the command line; ignores others.
  void read(const std::vector<std::string>& criu_options);
  TreeOptions tree_options() const {
    return {.external_unix_sockets = ext_unix_sk, .journal_is_bridged = !moved_unit.empty()};
  }
};

// Returns the bytes of a tree's memory that the source sends, and that the tree needs at the
// target.
uint64_t memory_to_move_bytes(const MoveOptions& options, const NodeFacts& source,
                              const TreeFacts& tree);

struct ListenerQuestion {
  std::string protocol;  // "tcp" or "udp"
  std::string address;
  uint32_t port = 0;
};

struct PreflightQuestions {
  std::vector<AnnouncedProcess> processes;
  std::string boot_id;  // boot ID of the source; equal boot IDs mean that both nodes share a kernel
  std::vector<pid_t> pids;
  std::vector<FileFact> files;  // files and directories
  std::vector<std::string> addresses;
  std::vector<ListenerQuestion> listeners;
  std::vector<ContainerQuestion> containers;  // one per container, in the order of the trees
  std::string processor;  // result of describe_processor(); empty: CRIU cannot describe it
};

// How a file at the target compares with the expected one.
enum class FileVerdict {
  kSame,    // same type, and for a file same mode, size and compared content
  kShared,  // the same file, in a file system that both nodes mount
  kMissing,
  kOtherType,
  kOtherMode,
  kShorter,
  kLonger,
  kOtherContent,
  kUnchecked,  // same size; the target has not compared the content
  kVerdictCount
};

struct PreflightAnswers {
  NodeFacts node;
  std::vector<pid_t> pids_taken;
  std::vector<FileVerdict> files;  // one per file, in the order of PreflightQuestions::files
  std::vector<std::string> addresses_missing;
  std::vector<ListenerQuestion> listeners_taken;
  std::vector<ContainerAnswer> containers;  // one per item of PreflightQuestions::containers
  // What the target's restart policy does not accept; empty: it accepts all.
  std::string policy_problem;
  // Why CRIU would not restore on the target's CPU; empty: CRIU would restore.
  std::string processor_problem;
  // The mount of the target if the target is drained, so that it begins nothing new; empty: not
  // drained.
  std::string drained_mount;
};

// Properties of the target daemon.
struct TargetContext {
  RestartPolicy restart_policy;
  int64_t store_free_bytes = -1;  // free space in the image store; -1: unlimited
  std::string drained_mount;      // the mount of a drained daemon; empty: not drained
};

PreflightQuestions make_questions(const std::vector<TreeFacts>& trees, const MoveOptions& options);

// The questions as a request to the migration agent (migration/relay/agent_requests.h).
struct PreflightRequest {
  static constexpr const char* kName = "preflight";
  int version = 0;           // of the questions
  nlohmann::json questions;  // see parse_questions()
  template <typename F>
  void fields(F&& field) {
    field("version", version), field("questions", questions);
  }
};
PreflightRequest make_request(const PreflightQuestions& questions);

// Runs at the target. Returns the validated questions of a peer. Errors: EPROTO, E2BIG, EINVAL.
Result<PreflightQuestions> parse_questions(const PreflightRequest& request);

// Runs at the target. Returns the agent's reply to a request of its peer: {"ok": true, ...}, or
// {"ok": false, "error": "..."} for an invalid request. Reads at most 64 MiB of each file and 4 GiB
// in all. Threads: those of `criu`.
nlohmann::json answer_preflight(const PreflightRequest& request, const TargetContext& context,
                                CriuAnswers& criu);

// Parses the target's answer. Errors: EPROTO with the target's error, or when the answer does not
// match the questions.
Result<PreflightAnswers> read_answers(const nlohmann::json& answer,
                                      const PreflightQuestions& questions);

// Returns the findings, each once: first those that stop the move, then the warnings.
std::vector<Finding> check_move(const MoveOptions& options, const NodeFacts& source,
                                const std::vector<TreeFacts>& trees,
                                const PreflightQuestions& questions,
                                const PreflightAnswers& answers);

// Checks the room for a tree that moves separately. `others_bytes`: what the trees that move before
// it need. Returns findings that stop the tree if the target has no room for it in addition to
// them.
std::vector<Finding> check_room_besides(uint64_t others_bytes, uint64_t needed_bytes,
                                        const NodeFacts& target);

}  // namespace ppmr
