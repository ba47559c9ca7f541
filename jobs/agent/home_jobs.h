// The jobs whose home is this host: a user has started them here with `ppmr job run`.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "jobs/agent/address_range.h"
#include "jobs/agent/host_contacts.h"
#include "jobs/agent/host_pool.h"
#include "jobs/agent/job_epochs.h"
#include "jobs/agent/job_record.h"
#include "jobs/agent/job_workers.h"
#include "jobs/agent/record_files.h"
#include "jobs/agent/requests.h"
#include "jobs/agent/suspension_files.h"
#include "jobs/node/job_network.h"

namespace ppmr {

// The job's record keeps the errors of moves. This bounds their size, because users can cause any
// number of them.
inline constexpr size_t kMoveErrorMaxBytes = 1000;

struct HomeOptions {
  std::string host;  // the name of this host for the other agents
  AddressRange addresses;
  JobNetwork network;
  // Sends a request to the agent of a host, see ask_peer().
  AskHost ask;
  size_t jobs_per_user_max = 64;
  // If a host cannot be reached, and has not asked its home about its nodes for this time, the home
  // counts the host as failed. If a home has not answered for this time, a host removes the home's
  // nodes.
  std::chrono::seconds host_timeout{300};
  // A protected job is rolled back when one of its hosts has been silent for this time, since a
  // question that it has not answered. First the home asks the host once more, and then runs the
  // fence.
  std::chrono::seconds dead_after{1};
  // A program that ends with 0 only if the host that is its argument is certainly dead. It may
  // switch the host off. For a host whose name has had no address, it runs after `host_timeout`.
  // Empty: a job whose host does not answer ends after `host_timeout`.
  std::string fence;
  SuspensionOptions suspension;
};

struct JobRequest {
  std::vector<std::string> hosts;  // each host gets a node
  std::vector<std::string> spares;
  JobUser user;
  pid_t launcher = 0;
  std::string allocation{};                    // see NodeSpec
  std::chrono::milliseconds protect_every{0};  // 0: not protected
  std::chrono::milliseconds mtbf{0};           // of a host; 0: `protect_every` does not change
  bool rdma = false;  // whether its nodes get RDMA, provided that all hosts have it
};

struct StartedJob {
  JobRecord record;
  UniqueFd connection;    // connection to the command port of the job's first node
  std::string no_rdma{};  // why a job that wanted RDMA has none, and which host lacks it
};

struct SuspendRequest {
  std::string job;         // empty: the only job of the user
  uid_t uid = 0;           // the caller
  std::string allocation;  // with an empty `job`: only jobs of this allocation; empty: all jobs
  std::string directory;   // for the files of the suspended job
};

struct SuspendedState {
  std::string job;
  uint64_t bytes = 0;  // memory of its nodes
  std::chrono::milliseconds took{0};
};

struct ResumeRequest {
  std::string directory;
  JobRequest run;      // the user is the caller
  bool again = false;  // resumes the job even if it has gone on before
};

struct ResumedJob {
  StartedJob started;
  nlohmann::json launcher;  // see SuspendedJob
};

// What a launcher asks about its job once a second.
struct LauncherNews {
  unsigned rollbacks = 0;     // how often a rollback of the job has begun
  bool stands_still = false;  // true: the launcher prints nothing, and reports how far it is
};

struct JobEnd {
  std::string why;
  bool is_suspended = false;
};

// Threads: any.
class HomeJobs {
 public:
  // Reads the records of an earlier agent of this host.
  HomeJobs(HomeOptions options, RecordFiles records);

  // Makes the job's nodes on all hosts, and checks its spares. Errors: what the hosts refuse; then
  // nothing of the job remains.
  Result<StartedJob> run(const JobRequest& request);
  // Removes the job's nodes. `uid`: the caller; root may end every job. `why`: the reason that the
  // launcher receives (exists()). Idempotent. Errors: EPERM.
  Status end(const std::string& job, uid_t uid, const JobEnd& why);
  // Returns the news for the launcher. Errors: ENOENT: the job has ended; how_it_ended() returns
  // why. EIO: the record of the job could not be read, so the job may run. This holds for all calls
  // with a job.
  Result<LauncherNews> exists(const std::string& job) const;
  JobEnd how_it_ended(const std::string& job) const;

  // Suspends a job: writes an epoch of all its nodes to files, and ends the job. Blocks until then.
  // Errors: ENOENT, EPERM; EINVAL: the request names no job, and the user has several; EBUSY; those
  // of SuspensionFiles; what a host reports. The job goes on after an error.
  Result<SuspendedState> suspend(const SuspendRequest& request);
  // Notes how far the launcher of a job that stands still is. Errors: ENOENT, EPERM.
  Status note_launcher(const std::string& job, uid_t uid, const nlohmann::json& launcher);
  // Lets a suspended job go on. Errors: those of run() and SuspensionFiles; EALREADY: the job has
  // gone on before.
  Result<ResumedJob> resume(const ResumeRequest& request);
  // Handles a report of the host `asker` that its node of the job has ended, and why: rolls the job
  // back, or ends it.
  void lose(const std::string& job, unsigned index, const std::string& asker,
            const std::string& why);

  // Chooses a spare for a node that has to leave `from`, and marks both hosts as moving. `to` may
  // name the spare. First asks all spares at once, and does not choose one that does not answer
  // within seconds. Errors: ENOENT: the job has ended; EBUSY; ENOSPC: no spare is left; the message
  // says why each one is not available.
  Result<std::string> reserve(const std::string& job, unsigned index, const std::string& from,
                              const std::string& to);
  // Records the end of a move. Idempotent. Errors: ENOENT: the job has ended.
  Status settle(const host_request::Settle& settlement);
  // Returns the host to which the node belongs: {host, moving_to}. `asker`: the host that asks.
  // Errors: ENOENT: the job has ended, so the node belongs to no host.
  Result<std::pair<std::string, std::string>> place(const std::string& job, unsigned index,
                                                    const std::string& asker);

  // Returns a new connection to the command port of the job's first node, for its owner. Errors:
  // ENOENT, EPERM; EAGAIN while the job is being rolled back.
  struct NewConnection {
    UniqueFd connection;
    unsigned rollbacks = 0;  // see exists()
  };
  Result<NewConnection> reconnect(const std::string& job, uid_t uid) const;

  // Begins the epochs that are due, and repeats rollbacks that have failed, each on a thread of its
  // own. The caller calls this about once a second.
  void protect();
  // Lets the epochs that are under way fail soon, and begins no more epochs and rollbacks.
  void stop_protection() { stops_ = true; }
  // Returns when the threads of all epochs and rollbacks have ended.
  void await_protection() { workers_.await_all(); }

  // Returns the jobs of a user; for root, the jobs of all users.
  std::vector<JobRecord> list(uid_t uid) const;
  // Returns these jobs as users see them (public_view()).
  std::vector<nlohmann::json> views(uid_t uid) const;

  // Notes that a host lives, and whether it is in the pool.
  void note_host(const std::string& host, const PoolReport& report);
  // Asks the hosts that have been quiet whether they live, many at once. Has each protected job
  // with a host that is silent for `dead_after` rolled back. The caller calls this each 250 ms. So
  // the rollback begins 2.3 s after a host has died, if the jobs have at most 32 hosts, and 3.8 s
  // if another dead host is just being asked.
  void watch_hosts();

  // Ends jobs whose launcher has ended, and jobs with a host that has not answered for
  // `host_timeout`. The caller calls this about once a second.
  void tend();
  // Removes the ports of jobs that this home does not have. Leaves the port of a job whose record
  // could not be read.
  void remove_stray_ports();
  // Returns whether a network namespace of this name is such a port.
  bool is_stray_port(const std::string& name) const;

 private:
  Result<JobRecord> plan(const JobRequest& request);
  // Returns why a host of the job, or a spare, cannot give its nodes RDMA. Empty: all of them can.
  std::string why_no_rdma_on_hosts(const JobRequest& request) const;
  // Returns a record without hosts and nodes. Errors: EINVAL and others: the request is not valid;
  // ESRCH: the launcher has ended.
  Result<JobRecord> begin_record(const JobRequest& request) const;
  // Checks whether the user may have one more job with so many addresses. Errors: EAGAIN: the user
  // has too many jobs; EADDRNOTAVAIL: `addresses` is too many.
  Status check_limits_locked(uid_t user, size_t addresses) const PPMR_REQUIRES(mutex_);
  Status make_nodes(const JobRecord& job) const;
  void remove(const JobRecord& job);
  Status save(const JobRecord& job) const { return records_.write(job.id, to_json(job)); }
  // Returns why a call cannot use a job that is not in jobs_, or is ending: ENOENT, or EIO.
  Error absence_locked(const std::string& id) const PPMR_REQUIRES(mutex_);
  // Finds a job. Errors: ENOENT, also for a job that is ending; EIO, see exists().
  Result<JobRecord*> find_locked(const std::string& job) PPMR_REQUIRES(mutex_);
  // Saves the changed job, then replaces the job in memory.
  Status replace_locked(JobRecord& known, JobRecord changed) PPMR_REQUIRES(mutex_);
  Status join_network(const JobRecord& job);
  // Returns a sentence about the node of the job that is lost with its host; empty: no node is
  // lost.
  std::string find_loss(const JobRecord& job);
  HostContact contact_of_host(const std::string& host) const;
  // Asks a host, and notes whether it answers. Short questions wait less for a host that is
  // silent (patience_with()). Errors: those of AskHost.
  Result<nlohmann::json> ask_host(const std::string& host, const nlohmann::json& request,
                                  std::chrono::milliseconds patience);
  // Returns a host with a node of the job that does not answer; empty: each answers, or the job
  // cannot be rolled back.
  std::string find_silent_host_locked(const JobRecord& job) const PPMR_REQUIRES(mutex_);
  // Has the jobs with such a host rolled back.
  void note_silent_hosts();
  // Waits until no epoch of the job is under way, because neither an epoch nor a move can begin
  // during the other. Errors: EBUSY.
  Status await_epoch(const std::string& job) PPMR_REQUIRES(mutex_);
  // Handles the loss of a node: begins the rollback of the job, or ends it.
  // `may_still_answer`: see JobProtection.
  void on_loss(const std::string& job, const std::string& why, bool may_still_answer = false);
  // Cancels a rollback that has stopped no node yet, because all hosts of the job answer again.
  void forget_loss(const std::string& job);
  bool is_epoch_due(const JobRecord& job) const PPMR_REQUIRES(mutex_);
  // An epoch must not be kept at a spare that does not answer now.
  JobRecord without_absent_spares_locked(JobRecord job) const PPMR_REQUIRES(mutex_);
  // Claims the job for an epoch. Errors: why there is none now.
  Result<JobRecord> begin_epoch(const std::string& job);
  void end_epoch(const std::string& job, uint64_t number, const Result<KeptEpoch>& kept);
  void protect_job(const std::string& job);
  // Returns the job if it has lost a node and is not rolled back yet.
  std::optional<JobRecord> find_to_roll_back(const std::string& job);
  // Begins the rollback of the job if it is to be rolled back, else an epoch. Does nothing while
  // other work for the job is under way.
  void begin_work_locked(const JobRecord& job) PPMR_REQUIRES(mutex_);

  // Finds the job, and claims it so that no epoch or move of it begins. Errors: those of suspend().
  Result<JobRecord> find_to_suspend(const SuspendRequest& request);
  Status suspend_job(const JobRecord& job, const SuspensionFiles& files,
                     const SuspensionPlace& place, SuspendedJob& suspended);
  Status write_held(const JobRecord& job, const SuspensionFiles& files,
                    const SuspensionPlace& place, SuspendedJob& suspended);
  // Records the suspension. From here on the job either becomes suspended, or is rolled back.
  Status commit_suspension(const JobRecord& job, const SuspensionPlace& place,
                           const KeptEpoch& kept);
  Result<nlohmann::json> await_launcher(const JobRecord& job, uint64_t number);
  // If the agent died between the suspension of the job and its end: ends the job, and returns
  // true. Returns false if the job is not suspended. Fails if the file of the job cannot be read.
  Result<bool> finish_suspension(const JobRecord& job);
  // Returns ask_host(), except that it fails if the agent ends and the request would wait for
  // the end of a long step.
  AskHost ask_unless_ending();
  // The same for an epoch of the job: also fails, with the reason, if check_epoch() fails.
  AskHost ask_unless_lost(const JobRecord& job);
  // Returns whether an epoch can still end. `job`: as it was when the epoch began. Errors: a node
  // was lost, or a spare that may be a partner is silent.
  Status check_epoch(const JobRecord& job) const;
  Result<JobRecord> plan_resumed(const ResumeRequest& request, const SuspendedJob& suspended);
  Status run_resumed(const JobRecord& job, const SuspensionPlace& place);
  // Checks that no job in the network uses an address of the suspended job. Errors: EADDRINUSE.
  Status check_addresses(const JobRecord& job) const;
  // Rolls the job back, or notes that a rollback is not needed. After an error protect() calls it
  // again, until it succeeds or the job ends.
  void roll_back_job(const JobRecord& job);
  Status try_rollback(const JobRecord& job);
  Status note_plan(const std::string& job, const std::vector<NodeRollback>& rollbacks);
  Status stop_earlier_try(const JobRecord& job, const std::vector<NodeRollback>& rollbacks,
                          const std::set<std::string>& dead);
  struct MissingHosts {
    std::set<std::string> dead;  // the fence has confirmed it
    std::set<std::string> away;  // spares that the rollback does without, for any reason
  };
  // Returns the hosts of the job that a rollback cannot use. A host with a node, or a host that
  // alone may keep the epoch of a node, must answer or be dead. Errors: EAGAIN: such a host gives
  // no answer, and the fence does not confirm that it is dead; kNoAddress: this host does not find
  // the address of such a host.
  Result<MissingHosts> find_missing_hosts(const JobRecord& job);
  // Asks the fence whether a host is dead. `error`: why the host did not answer. Errors: those of
  // find_missing_hosts().
  Status confirm_dead(const std::string& host, const Error& error) const;
  std::string probe(const std::string& host, const std::string& container) const;
  // Asks all of these hosts at once whether they live, and notes the answers.
  void ask_hosts(const std::vector<std::string>& hosts);
  // Returns why the job has no spare for a node, host by host.
  std::string why_no_spare(const JobRecord& job, const std::string& to) const PPMR_REQUIRES(mutex_);

  const HomeOptions options_;
  const RecordFiles records_;
  std::atomic<bool> stops_ = false;
  mutable Mutex mutex_;
  std::map<std::string, JobRecord> jobs_ PPMR_GUARDED_BY(mutex_);
  std::set<std::string> removing_ PPMR_GUARDED_BY(mutex_);  // IDs of jobs that end() removes now
  // The time at which the host of a node last asked. Key: NodeSpec::container().
  std::map<std::string, std::chrono::steady_clock::time_point> asked_ PPMR_GUARDED_BY(mutex_);
  std::map<std::string, JobEnd> ended_ PPMR_GUARDED_BY(mutex_);
  // Jobs that have an epoch under way, or that are being suspended or resumed.
  std::set<std::string> capturing_ PPMR_GUARDED_BY(mutex_);
  mutable CondVar captured_;
  // Jobs that stand still, with the state that the launcher has reported; null: not reported yet.
  std::map<std::string, nlohmann::json> standing_ PPMR_GUARDED_BY(mutex_);
  CondVar launcher_spoke_;
  // When the last epoch of a job began, and since when a job cannot be rolled back.
  std::map<std::string, std::chrono::steady_clock::time_point> epoch_began_ PPMR_GUARDED_BY(mutex_);
  std::map<std::string, std::chrono::steady_clock::time_point> stuck_since_ PPMR_GUARDED_BY(mutex_);
  AddressPool addresses_ PPMR_GUARDED_BY(mutex_);
  HostContacts contacts_ PPMR_GUARDED_BY(mutex_);
  JobWorkers workers_;  // destroyed first, because the threads use the members above
};

}  // namespace ppmr
