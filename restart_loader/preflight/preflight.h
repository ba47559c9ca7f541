// Before a move: what would stop it, in plain words. Three steps:
//
//   source: questions_about(trees)  ->  target: answer_preflight()  ->  source: find_obstacles()
//
// The source sends what it expects, digests included, and hears "the same" or not: the target tells
// nobody what is in its files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "restart_loader/preflight/node_facts.h"
#include "restart_loader/preflight/tree_facts.h"
#include "restart_loader/processes/finding.h"

namespace ppmr {

// How the move is to be made.
struct MoveOptions {
  bool lazily = true;
  bool pre_copy = false;
  bool own_pid_namespace = false;  // restored in a pid namespace of its own: all pids are free
  // Of CRIU's own options those that decide whether something stops it.
  bool tcp_established = false;
  bool tcp_close = false;
  bool shell_job = false;
  bool ext_unix_sk = false;
  bool file_locks = false;
  bool link_remap = false;
  bool force_irmap = false;
  bool cpu_cap = false;                  // the user says which features of processors matter
  bool external_files = false;           // some --external: what it names is not judged
  uint64_t ghost_limit_bytes = 1 << 20;  // as CRIU has it

  // Takes them from what follows -- on the command line; what it does not know it leaves alone.
  void read(const std::vector<std::string>& criu_options);
  TreeOptions tree_options() const { return {.external_unix_sockets = ext_unix_sk}; }
};

struct ListenerQuestion {
  std::string protocol;  // "tcp" or "udp"
  std::string address;
  uint16_t port = 0;
};

struct PreflightQuestions {
  std::string boot_id;  // of the source's kernel: nodes that share one share its file systems
  std::vector<pid_t> pids;
  std::vector<FileFact> files;  // directories, too
  std::vector<std::string> addresses;
  std::vector<ListenerQuestion> listeners;
  std::vector<ContainerQuestion> containers;  // in the order of the trees
  std::string processor;  // what describe_processor() says of it; empty: CRIU cannot
};

// What there is instead of an expected file.
enum class FileVerdict {
  kSame,    // the same content, as far as it was asked for
  kShared,  // the very same file, on a file system of both nodes
  kMissing,
  kOtherType,
  kOtherMode,
  kShorter,
  kLonger,
  kOtherContent,
  kUnchecked,  // of the same size; nothing more was asked, or too much, or it cannot be read
  kVerdictCount
};

struct PreflightAnswers {
  NodeFacts node;
  std::vector<pid_t> pids_taken;
  std::vector<FileVerdict> files;  // in the order of the questions
  std::vector<std::string> addresses_missing;
  std::vector<ListenerQuestion> listeners_taken;
  std::vector<ContainerAnswer> containers;  // in the order of the questions
  std::string processor_problem;  // why CRIU would not restore on this one; empty: it would
};

// What the daemon that answers knows of itself.
struct TargetContext {
  int64_t store_free_bytes = -1;  // what its image store can still take; -1: without bound
  std::string criu;               // empty: looked for
};

PreflightQuestions questions_about(const std::vector<TreeFacts>& trees, const MoveOptions& options);
nlohmann::json to_request(const PreflightQuestions& questions);

// At the target: what the agent calls with a request of the peer's. {"ok": true, ...}, or {"ok":
// false, "error": "..."} for one that is not to be understood. Reads files (64 MiB of each at most,
// 4 GiB in all) and runs `criu check`: takes 0.1 s and more. Threads: any.
nlohmann::json answer_preflight(const nlohmann::json& request, const TargetContext& context);

// Errors: EPROTO with the peer's own words, or where the answer does not fit the questions.
Result<PreflightAnswers> read_answers(const nlohmann::json& answer,
                                      const PreflightQuestions& questions);

// Everything that stops the move, then everything to know; each told once.
std::vector<Finding> find_obstacles(const MoveOptions& options, const NodeFacts& source,
                                    const std::vector<TreeFacts>& trees,
                                    const PreflightQuestions& questions,
                                    const PreflightAnswers& answers);

// The part of it that needs no target: what stops the dump.
std::vector<Finding> find_obstacles_at_source(const MoveOptions& options, const NodeFacts& source,
                                              const std::vector<TreeFacts>& trees);

}  // namespace ppmr
