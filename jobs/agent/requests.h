// The requests to a job agent, one struct each (base/json_message.h): those of users, at its
// socket, and those of other agents, at its port. An answer is {"ok":true} with what was asked for,
// or a refusal. The agent checks whatever a request names: users and other hosts may send anything.
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

// Who asks is known by the socket: the user and the process.
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

// `ppmr job run`, whose connection to the first node comes with the answer.
struct Run {
  static constexpr const char* kName = "run";
  std::vector<std::string> hosts;
  std::vector<std::string> spares;
  std::string allocation;   // of Slurm; empty: none
  Milliseconds protect{0};  // the time between two epochs; 0: not protected
  Milliseconds mtbf{0};     // of a host; not 0: later epochs are as frequent as costs least
  bool rdma = false;
  template <typename F>
  void fields(F&& field) {
    field("hosts", hosts), field("spares", spares), field("allocation", allocation);
    field.may_lack("protect_ms", protect), field.may_lack("mtbf_ms", mtbf);
    field.may_lack("rdma", rdma);
  }
};

// As Run, for the suspended job in `directory`.
struct Resume {
  static constexpr const char* kName = "resume";
  std::string directory;
  std::vector<std::string> hosts;
  std::vector<std::string> spares;
  std::string allocation;
  Milliseconds protect{0};
  Milliseconds mtbf{0};
  bool again = false;  // also if it has gone on before
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
  std::string job;         // empty: the only one of the user
  std::string allocation;  // with an empty `job`: of this allocation; empty: of any
  std::string directory;
  template <typename F>
  void fields(F&& field) {
    field("job", job), field("directory", directory), field.may_lack("allocation", allocation);
  }
};

// Whether the hosts could have job nodes of the user.
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

// A new connection to the first node of the job comes with the answer.
struct Reconnect : OfJob {
  static constexpr const char* kName = "reconnect";
};

// The launcher of a job that stands still says how far it is.
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

// Whether this host could have job nodes of `user`.
struct Hello {
  static constexpr const char* kName = "hello";
  uid_t user = 0;
  // Waits for the step of a scheduler, too, as Join does. Empty string: for none. Absent: not
  // asked.
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
  bool expected = false;  // whether its processes come from elsewhere
  std::string migration;  // the ID of the move that brings them, if one does
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
  std::string home;  // only if it is this home's; empty: of any
  template <typename F>
  void fields(F&& field) {
    field("container", container), field.may_lack("home", home);
  }
};

struct Present : OfNode {
  static constexpr const char* kName = "present";
};

// What `uid` asked of another host's agent.
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

// The jobs of `uid` whose home this is.
struct Status : OfUser {
  static constexpr const char* kName = "status";
};

// The requests to a job's home. `index`: of the node.

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

// The end of a move, as the host that the node left reports it.
struct Settle {
  static constexpr const char* kName = "settle";
  std::string job;
  unsigned index = 0;
  std::string from;
  bool moved = false;
  bool spare_failed = false;  // whether the home must not choose that spare again
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
  std::optional<nlohmann::json> pool;  // its place in the pool: a PoolReport
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

// The steps of a node of a job in its epochs and rollbacks (job_epochs.h). `number`: of the epoch.

struct EpochBegin {
  static constexpr const char* kName = "epoch-begin";
  std::string container;
  uint64_t number = 0;
  uint64_t oldest = 0;  // epochs before it are not kept any longer
  std::string partner;  // the host that keeps a copy; empty: none
  bool hold = false;    // whether the node stands still once its epoch is kept
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

// Answered within about a second, by {"pending":true} if the step is not done.
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

// Sends the epoch that is kept here to another host.
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

// The steps of a node of a job that is suspended or goes on (job_suspension.h).

struct SuspendHold : OfEpoch {
  static constexpr const char* kName = "suspend-hold";
};

struct SuspendLetGo : OfEpoch {
  static constexpr const char* kName = "suspend-let-go";
};

struct SuspendStop : OfNode {
  static constexpr const char* kName = "suspend-stop";
};

// Answered within about a second, by {"pending":true} if the file is not written.
struct SuspendWrite {
  static constexpr const char* kName = "suspend-write";
  std::string container;
  uint64_t number = 0;
  std::string directory;
  std::string suspension;
  std::string key_id;  // of the key that encrypts on all hosts
  template <typename F>
  void fields(F&& field) {
    field("container", container), field("number", number), field("directory", directory);
    field("suspension", suspension), field("key_id", key_id);
  }
};

// Answered as SuspendWrite.
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
