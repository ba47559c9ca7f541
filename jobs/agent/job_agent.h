// `ppmr job agent`: the service of one host for the jobs of its users. It makes, moves and removes
// job nodes, which needs root; users and other hosts' agents send it requests.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "daemon/control/control_socket.h"
#include "daemon/metrics/metrics_server.h"
#include "jobs/agent/evacuation.h"
#include "jobs/agent/home_jobs.h"
#include "jobs/agent/hook_request.h"
#include "jobs/agent/host_nodes.h"
#include "jobs/agent/host_pool.h"
#include "jobs/agent/job_metrics.h"
#include "jobs/agent/long_commands.h"
#include "jobs/agent/node_epochs.h"
#include "jobs/agent/peers.h"
#include "jobs/agent/requests.h"

namespace ppmr {

inline constexpr const char* kAgentSocket = "/run/ppmr-job.sock";
inline constexpr uint16_t kPeerPort = 7473;
inline constexpr uint16_t kTargetPort = 7472;

struct JobAgentOptions {
  std::string host;       // the name that users and other agents use for this host
  std::string directory;  // contains all files that the agent makes; private to root
  std::string socket = kAgentSocket;
  PeerOptions peers;
  HomeOptions home;  // `ask` is set by the agent
  JobNodeOptions nodes;
  EvacuationOptions evacuation;
  std::vector<std::string> target_options;  // more options for `ppmr target`
  // The program that decides whether a user may have job nodes on this host; empty: every user may.
  // The agent calls PROGRAM UID; exit code 0 means yes.
  std::string admission_program;
  bool needs_step = false;      // whether each job node must be in a control group of a Slurm step
  std::string metrics_address;  // where to serve metrics; empty: nowhere
  OnConnectionEvent on_event;   // called for connections of the other agents
};

// Threads: one thread creates, runs and destroys the agent; any thread may call stop().
class JobAgent {
 public:
  // Creates the agent, starts `ppmr target` unless it runs already, and listens. Errors: those of
  // the parts.
  static Result<std::unique_ptr<JobAgent>> create(JobAgentOptions options);
  ~JobAgent();

  // Blocks until stop(). Job nodes continue without the agent.
  void run();
  void stop();
  Security& security() { return peers_->security(); }  // for the connections of other agents

 private:
  JobAgent(JobAgentOptions options, RecordFiles home_records, RecordFiles node_records,
           RecordFiles pool_record);

  // `message`: a user_request.
  nlohmann::json answer_user(const nlohmann::json& message, const ControlClient& client,
                             std::vector<UniqueFd>& descriptors);
  nlohmann::json start_job(const user_request::Run& request, const ControlClient& client,
                           std::vector<UniqueFd>& descriptors);
  nlohmann::json resume_job(const user_request::Resume& request, const ControlClient& client,
                            std::vector<UniqueFd>& descriptors);
  nlohmann::json suspend_job(const user_request::Suspend& request, uid_t uid);
  nlohmann::json check_hosts(const std::vector<std::string>& hosts, uid_t uid) const;
  nlohmann::json answer_launcher(const std::string& job) const;
  nlohmann::json reconnect(const std::string& job, uid_t uid,
                           std::vector<UniqueFd>& descriptors) const;
  nlohmann::json status(uid_t uid) const;
  // Sends the request to the agent of another host, and returns the answer.
  nlohmann::json ask_other(const std::string& host, const nlohmann::json& request) const;

  // `message`: a host_request.
  nlohmann::json answer_peer(const nlohmann::json& message);
  nlohmann::json welcome(const host_request::Hello& hello);
  Status make_node(const host_request::Join& join);

  // Takes this host out of the pool, and evacuates all nodes on it that `uid` may move. Returns
  // {"ok":true,"evacuation":{"ok":..,...}} or a refusal. The inner `ok` says whether all nodes have
  // moved.
  nlohmann::json evacuate(uid_t uid, const std::string& to, const MoveLimits& limits);
  nlohmann::json evacuate_other(const std::string& host, const host_request::Evacuate& request);
  // Aborts the moves away from this host that `uid` may abort. Returns
  // {"ok":true,"cancelled":{"ok":..,...}}.
  nlohmann::json cancel(uid_t uid);
  // Makes this host a host for job nodes again.
  nlohmann::json give_back(uid_t uid);
  // Errors: EACCES: this host is out of the pool for the user.
  Status check_pool(uid_t user) const;
  // Waits until no connection of the job node waits to be accepted. Errors: EAGAIN: after the time
  // limit a connection still waits, or the agent ends.
  Status await_accepts(const std::string& container);
  // The parts of evacuate() for one node: evacuate_node() does all; prepare_spare() reserves and
  // prepares a spare; run_move() moves the node, up to the decision.
  nlohmann::json evacuate_node(const HostNode& node, const std::string& to,
                               const MoveLimits& limits);
  Result<HostNode> prepare_spare(const HostNode& node, const std::string& to);
  Result<MoveReport> run_move(const HostNode& node, const MoveLimits& limits);
  // Asks the home for a spare. Returns {"to":SPARE} or {"refusal":...}. After an error the home may
  // have reserved a spare.
  Result<nlohmann::json> reserve(const HostNode& node, const std::string& to);
  // Reports a decided move to the home, and removes the remains of the node at the host that it is
  // not on. Returns whether the job has ended.
  Result<bool> conclude_move(const HostNode& node, const MoveReport& report, bool spare_failed);
  // Reports the move to the home. Returns whether the job has ended.
  Result<bool> tell_home(const HostNode& node, const MoveReport& report, bool spare_failed);

  // The steps of a job node in epochs and rollbacks (job_epochs.h).
  nlohmann::json take_step(const host_request::EpochBegin& step);
  nlohmann::json take_step(const host_request::EpochFreeze& step);
  nlohmann::json take_step(const host_request::EpochGo& step);
  nlohmann::json take_step(const host_request::EpochAwait& step);
  nlohmann::json take_step(const host_request::EpochForward& step);
  nlohmann::json take_step(const host_request::EpochEnd& step);
  nlohmann::json take_step(const host_request::RollbackStop& step);
  nlohmann::json take_step(const host_request::RollbackRun& step);
  // The steps of suspensions (job_suspension.h).
  nlohmann::json take_step(const host_request::SuspendHold& step);
  nlohmann::json take_step(const host_request::SuspendLetGo& step);
  nlohmann::json take_step(const host_request::SuspendStop& step);
  nlohmann::json take_step(const host_request::SuspendWrite& step);
  nlohmann::json take_step(const host_request::ResumeRead& step);
  // Write or read the file of a node, and return whether that is done. If not, the caller calls the
  // function again.
  Result<bool> write_suspended(const host_request::SuspendWrite& step);
  Result<bool> read_suspended(const host_request::ResumeRead& step);
  Status stop_suspended(const std::string& container);
  // Lets a node run from an epoch that this host keeps.
  Status run_from_epoch(const std::string& container, uint64_t number);

  Status admit(const JobUser& user) const;
  // Returns the step that must contain the user's job nodes of `allocation`. Errors: EACCES; those
  // of StepHolders::await().
  Result<StepHolder> find_step(uid_t uid, const std::string& allocation);
  Status start_target() const;
  Status serve_metrics();
  bool wait(std::chrono::milliseconds time);
  std::string target_mount() const { return options_.directory + "/in"; }
  std::string hooks_directory() const { return options_.directory + "/hooks"; }
  void serve_hooks();
  nlohmann::json answer_hook(const HookRequest& request);
  void finish_moves();
  void remove_orphans(unsigned round);
  // Returns whether this host asks the home in this round to which host the node belongs.
  bool is_turn(const NodeSpec& spec, unsigned round) const;
  void remove_strays();
  // Removes a node, even if it is still on its way here. Idempotent. Errors: those of
  // abort_arrival() and HostNodes::remove(). After an error the node is still there.
  Status remove_node(const std::string& container);
  // Notes whether a home has answered a question. `error`: null if it has answered.
  void note_answer(const std::string& home, const Error* error);
  bool is_orphaned(const std::string& home) const;
  void forget_move(const HostNode& node);
  // Reports to the home that the node has arrived here, if the host `from` has not reported it.
  void report_arrival(const HostNode& node, const std::string& from);
  void report_loss(const HostNode& node);

  const JobAgentOptions options_;
  HomeJobs home_;
  HostNodes nodes_;
  NodeEpochs epochs_;
  LongCommands files_;  // write and read the files of suspended nodes; the name is the container
  HostPool pool_;
  StepHolders holders_;
  // The time since which a home has left questions unanswered. Only run() uses this map.
  std::map<std::string, std::chrono::steady_clock::time_point> silent_since_;

  Mutex mutex_;
  CondVar stopping_;
  bool stopped_ PPMR_GUARDED_BY(mutex_) = false;

  // These are destroyed first, because their threads use the members above.
  std::unique_ptr<PeerServer> peers_;
  std::unique_ptr<ControlServer> users_;
  std::unique_ptr<JobMetrics> metrics_;
  std::unique_ptr<MetricsServer> metrics_server_;
};

}  // namespace ppmr
