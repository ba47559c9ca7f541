// The requests to a job agent, one struct each (base/json_message.h). Users send theirs to its
// socket, other agents to its port. An answer is {"ok":true,...} or a refusal. The agent checks all
// names and numbers in a request, because users and other hosts may send anything.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json_message.h"
#include "jobs/agent/move_limits.h"

namespace ppmr {

// The agent gets the user and the process of the sender from the socket.
namespace user_request {

using Milliseconds = std::chrono::milliseconds;

struct OfJob {
  std::string job;
  template <typename F>
  void fields(F&& field) {
    field("job", job);
  }
};

struct OfHost {
  std::string host;
  template <typename F>
  void fields(F&& field) {
    field("host", host);
  }
};

// Starts a job for `ppmr job run`. The answer comes with a connection to the first node.
struct Run {
  static constexpr const char* kName = "run";
  std::vector<std::string> hosts;
  std::vector<std::string> spares;
  std::string allocation;   // of Slurm; empty: none
  Milliseconds protect{0};  // the time between two epochs; 0: not protected
  Milliseconds mtbf{0};     // of a host; not 0: the agent adapts `protect` after each epoch
  bool rdma = false;
  template <typename F>
  void fields(F&& field) {
    field("hosts", hosts), field("spares", spares), field("allocation", allocation);
    field.may_lack("protect_ms", protect), field.may_lack("mtbf_ms", mtbf);
    field.may_lack("rdma", rdma);
  }
};

// Like Run, but lets the suspended job in `directory` go on.
struct Resume {
  static constexpr const char* kName = "resume";
  std::string directory;
  std::vector<std::string> hosts;
  std::vector<std::string> spares;
  std::string allocation;
  Milliseconds protect{0};
  Milliseconds mtbf{0};
  bool again = false;  // resumes the job even if it has gone on before
  template <typename F>
  void fields(F&& field) {
    field("directory", directory), field("hosts", hosts), field("spares", spares);
    field("allocation", allocation);
    field.may_lack("protect_ms", protect), field.may_lack("mtbf_ms", mtbf);
    field.may_lack("again", again);
  }
};

struct Suspend {
  static constexpr const char* kName = "suspend";
  std::string job;         // empty: the only job of the user
  std::string allocation;  // with an empty `job`: only jobs of this allocation; empty: all jobs
  std::string directory;
  template <typename F>
  void fields(F&& field) {
    field("job", job), field("directory", directory), field.may_lack("allocation", allocation);
  }
};

// Asks whether the hosts could have job nodes of the user.
struct Check {
  static constexpr const char* kName = "check";
  std::vector<std::string> hosts;
  template <typename F>
  void fields(F&& field) {
    field("hosts", hosts);
  }
};

struct Exists : OfJob {
  static constexpr const char* kName = "exists";
};

// Asks for a new connection to the first node of the job. The answer carries the connection.
struct Reconnect : OfJob {
  static constexpr const char* kName = "reconnect";
};

// The launcher of a job that stands still reports how far it is.
struct Standstill {
  static constexpr const char* kName = "standstill";
  std::string job;
  nlohmann::json launcher;  // see SuspendedJob
  template <typename F>
  void fields(F&& field) {
    field("job", job), field("launcher", launcher);
  }
};

struct End : OfJob {
  static constexpr const char* kName = "end";
};

// The step of a scheduler holds this host for its allocation, as long as the caller lives.
struct Hold {
  static constexpr const char* kName = "hold";
  std::string allocation;
  template <typename F>
  void fields(F&& field) {
    field("allocation", allocation);
  }
};

struct Status {
  static constexpr const char* kName = "status";
  template <typename F>
  void fields(F&&) {}
};

struct Evacuate {
  static constexpr const char* kName = "evacuate";
  std::string host;
  std::string to;  // the spare; empty: any
  MoveLimits limits;
  template <typename F>
  void fields(F&& field) {
    field("host", host), field.may_lack("to", to), field.may_lack("limits", limits);
  }
};

struct Cancel : OfHost {
  static constexpr const char* kName = "cancel";
};

struct Return : OfHost {
  static constexpr const char* kName = "return";
};

using Any = std::variant<Run, Resume, Suspend, Check, Exists, Reconnect, Standstill, End, Hold,
                         Status, Evacuate, Cancel, Return>;

}  // namespace user_request

// A request between agents also has `asked`, the name by which the sender knows this host
// (ask_peer()).
namespace host_request {

struct OfNode {
  std::string container;
  template <typename F>
  void fields(F&& field) {
    field("container", container);
  }
};

struct OfEpoch {
  std::string container;
  uint64_t number = 0;
  template <typename F>
  void fields(F&& field) {
    field("container", container), field("number", number);
  }
};

struct OfUser {
  uid_t uid = 0;
  template <typename F>
  void fields(F&& field) {
    field("uid", uid);
  }
};

struct Alive {
  static constexpr const char* kName = "alive";
  template <typename F>
  void fields(F&&) {}
};

// Asks whether this host could have job nodes of `user`.
struct Hello {
  static constexpr const char* kName = "hello";
  uid_t user = 0;
  // If present, the host also waits for the step of this allocation, as it does for Join. Empty
  // string: the job has no scheduler.
  std::optional<std::string> allocation;
  template <typename F>
  void fields(F&& field) {
    field("user", user), field.may_lack("allocation", allocation);
  }
};

// Makes a job node.
struct Join {
  static constexpr const char* kName = "join";
  nlohmann::json spec;    // a NodeSpec
  bool expected = false;  // whether its processes come from another host or from an epoch
  std::string migration;  // the ID of the move that brings the processes; empty: none
  template <typename F>
  void fields(F&& field) {
    field("spec", spec), field("expected", expected), field.may_lack("migration", migration);
  }
};

struct Arrived : OfNode {
  static constexpr const char* kName = "arrived";
};

struct Leave {
  static constexpr const char* kName = "leave";
  std::string container;
  std::string home;  // removes the node only if this is the node's home; empty: removes it anyway
  template <typename F>
  void fields(F&& field) {
    field("container", container), field.may_lack("home", home);
  }
};

struct Present : OfNode {
  static constexpr const char* kName = "present";
};

// The user `uid` wants this host evacuated. The agent that received the user's request forwards it.
struct Evacuate {
  static constexpr const char* kName = "evacuate";
  uid_t uid = 0;
  std::string to;
  MoveLimits limits;
  template <typename F>
  void fields(F&& field) {
    field("uid", uid), field("to", to), field.may_lack("limits", limits);
  }
};

struct Cancel : OfUser {
  static constexpr const char* kName = "cancel";
};

struct Return : OfUser {
  static constexpr const char* kName = "return";
};

// Asks for the jobs of `uid` whose home is this host.
struct Status : OfUser {
  static constexpr const char* kName = "status";
};

// The requests to a job's home. `index`: number of the node in the job.

struct Reserve {
  static constexpr const char* kName = "reserve";
  std::string job;
  unsigned index = 0;
  std::string from;  // the host that the node has to leave
  std::string to;    // the spare; empty: any
  template <typename F>
  void fields(F&& field) {
    field("job", job), field("index", index), field("from", from), field("to", to);
  }
};

// The host that the node left reports the end of its move.
struct Settle {
  static constexpr const char* kName = "settle";
  std::string job;
  unsigned index = 0;
  std::string from;
  bool moved = false;
  bool spare_failed = false;  // true: the home must not choose this spare again
  std::optional<double> downtime_s;
  std::string error;
  template <typename F>
  void fields(F&& field) {
    field("job", job), field("index", index), field("from", from), field("moved", moved);
    field("spare_failed", spare_failed), field.may_lack("downtime_s", downtime_s);
    field("error", error);
  }
};

struct Place {
  static constexpr const char* kName = "place";
  std::string job;
  unsigned index = 0;
  std::string asker;                   // the host that asks
  std::optional<nlohmann::json> pool;  // the PoolReport of `asker`
  template <typename F>
  void fields(F&& field) {
    field("job", job), field("index", index), field("asker", asker), field.may_lack("pool", pool);
  }
};

struct Lost {
  static constexpr const char* kName = "lost";
  std::string job;
  unsigned index = 0;
  std::string asker;
  std::string why;
  template <typename F>
  void fields(F&& field) {
    field("job", job), field("index", index), field("asker", asker), field("why", why);
  }
};

// The steps of a job node in epochs and rollbacks (job_epochs.h). `number`: of the epoch.

struct EpochBegin {
  static constexpr const char* kName = "epoch-begin";
  std::string container;
  uint64_t number = 0;
  uint64_t oldest = 0;  // epochs with lower numbers are no longer needed
  std::string partner;  // the host that keeps a copy of the epoch; empty: none
  bool hold = false;    // whether the node stands still even after its epoch is kept
  template <typename F>
  void fields(F&& field) {
    field("container", container), field("number", number), field("oldest", oldest);
    field("partner", partner), field("hold", hold);
  }
};

struct EpochFreeze : OfEpoch {
  static constexpr const char* kName = "epoch-freeze";
};

struct EpochGo {
  static constexpr const char* kName = "epoch-go";
  std::string container;
  uint64_t number = 0;
  bool keep = false;  // whether all nodes were captured
  template <typename F>
  void fields(F&& field) {
    field("container", container), field("number", number), field("keep", keep);
  }
};

// Waits for a step. The host answers within half a second, with {"pending":true} if the step is
// not done.
struct EpochAwait {
  static constexpr const char* kName = "epoch-await";
  std::string container;
  uint64_t number = 0;
  std::string step;  // a word of part_messages.h
  template <typename F>
  void fields(F&& field) {
    field("container", container), field("number", number), field("step", step);
  }
};

// Asks this host to send the epoch that it keeps to another host.
struct EpochForward {
  static constexpr const char* kName = "epoch-forward";
  std::string container;
  uint64_t number = 0;
  std::string to;
  template <typename F>
  void fields(F&& field) {
    field("container", container), field("number", number), field("to", to);
  }
};

struct EpochEnd : OfNode {
  static constexpr const char* kName = "epoch-end";
};

struct RollbackStop : OfNode {
  static constexpr const char* kName = "rollback-stop";
};

struct RollbackRun : OfEpoch {
  static constexpr const char* kName = "rollback-run";
};

// The steps of a job node when its job is suspended, or goes on (job_suspension.h).

struct SuspendHold : OfEpoch {
  static constexpr const char* kName = "suspend-hold";
};

struct SuspendLetGo : OfEpoch {
  static constexpr const char* kName = "suspend-let-go";
};

struct SuspendStop : OfNode {
  static constexpr const char* kName = "suspend-stop";
};

// Asks the host to write the file of the node. The host answers within about a second, with
// {"pending":true} if the file is not complete.
struct SuspendWrite {
  static constexpr const char* kName = "suspend-write";
  std::string container;
  uint64_t number = 0;
  std::string directory;
  std::string suspension;
  std::string key_id;  // the key with which all hosts must encrypt
  template <typename F>
  void fields(F&& field) {
    field("container", container), field("number", number), field("directory", directory);
    field("suspension", suspension), field("key_id", key_id);
  }
};

// Asks the host to read the file of the node. The host answers as to SuspendWrite.
struct ResumeRead {
  static constexpr const char* kName = "resume-read";
  std::string container;
  uint64_t number = 0;
  std::string directory;
  std::string suspension;
  template <typename F>
  void fields(F&& field) {
    field("container", container), field("number", number), field("directory", directory);
    field("suspension", suspension);
  }
};

using Any = std::variant<Alive, Hello, Join, Arrived, Leave, Present, Evacuate, Cancel, Return,
                         Status, Reserve, Settle, Place, Lost, EpochBegin, EpochFreeze, EpochGo,
                         EpochAwait, EpochForward, EpochEnd, RollbackStop, RollbackRun, SuspendHold,
                         SuspendLetGo, SuspendStop, SuspendWrite, ResumeRead>;

}  // namespace host_request
}  // namespace ppmr
