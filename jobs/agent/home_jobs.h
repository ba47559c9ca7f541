// The jobs whose home is this host: started by `ppmr job run` here.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "jobs/agent/address_range.h"
#include "jobs/agent/job_record.h"
#include "jobs/agent/peers.h"
#include "jobs/agent/record_files.h"
#include "jobs/node/job_network.h"

namespace ppmr {

struct HomeOptions {
  std::string host;  // the name by which the other agents know this one
  AddressRange addresses;
  JobNetwork network;
  PeerOptions peers;
  size_t jobs_per_user_max = 64;
  // A host that has not asked for the place of its nodes for this time, and cannot be reached, has
  // failed. Nodes whose home does not answer for this time are removed.
  std::chrono::seconds host_timeout{300};
};

struct JobRequest {
  std::vector<std::string> hosts;  // each gets a node
  std::vector<std::string> spares;
  JobUser user;
  pid_t launcher = 0;
  std::string allocation{};  // see NodeSpec
};

struct StartedJob {
  JobRecord record;
  UniqueFd connection;  // to the commands of the job's first node
};

// How a move ended, as the host that the node left reports it.
struct MoveSettlement {
  std::string job;
  unsigned index = 0;
  std::string from;
  bool moved = false;
  bool spare_failed = false;  // do not choose that spare again
  double downtime_s = -1;
  std::string error{};
};

// Threads: any.
class HomeJobs {
 public:
  // Reads the records of an earlier agent of this host.
  HomeJobs(HomeOptions options, RecordFiles records);

  // Makes the job's nodes on all hosts, and checks its spares. Errors: what the hosts refuse; then
  // nothing of the job remains.
  Result<StartedJob> run(const JobRequest& request);
  // Removes the job's nodes. `uid`: of the caller; root may end every job. `why` is for the
  // launcher (exists()). Idempotent. Errors: EPERM.
  Status end(const std::string& job, uid_t uid, const std::string& why);
  // Errors: ENOENT; the message says why the job has ended.
  Status exists(const std::string& job) const;
  // `asker` reports that its node ends, though the job has not, and why: ends the job.
  void lose(const std::string& job, unsigned index, const std::string& asker,
            const std::string& why);

  // Chooses a spare for a node that has to leave `from`, and marks both hosts as moving. `to` may
  // name the spare. Errors: ENOENT: the job has ended; EBUSY; ENOSPC: no spare is left.
  Result<std::string> reserve(const std::string& job, unsigned index, const std::string& from,
                              const std::string& to);
  // Idempotent. Errors: ENOENT: the job has ended.
  Status settle(const MoveSettlement& settlement);
  // Where the node belongs: {host, moving_to}. `asker`: the host that asks. Errors: ENOENT:
  // nowhere.
  Result<std::pair<std::string, std::string>> place(const std::string& job, unsigned index,
                                                    const std::string& asker);

  // The jobs of a user, of all users for root.
  std::vector<JobRecord> list(uid_t uid) const;

  // Ends jobs whose launcher has ended, or with a host that does not answer. The caller calls it
  // about once a second.
  void tend();
  // Removes the ports of jobs that are not known here.
  void remove_stray_ports();

 private:
  Result<JobRecord> plan(const JobRequest& request);
  Status make_nodes(const JobRecord& job) const;
  void remove(const JobRecord& job);
  Status save(const JobRecord& job) const { return records_.write(job.id, to_json(job)); }
  // Errors: ENOENT, also for a job that is ending.
  Result<JobRecord*> find_locked(const std::string& job);
  // Saves the changed job, then replaces the job in memory.
  Status replace_locked(JobRecord& known, JobRecord changed);
  Status join_network(const JobRecord& job);
  // Which node of the job is lost with its host, in a sentence; empty: none.
  std::string find_loss(const JobRecord& job);
  std::string probe(const std::string& host, const std::string& container) const;

  const HomeOptions options_;
  const RecordFiles records_;
  mutable std::mutex mutex_;
  std::map<std::string, JobRecord> jobs_;  // guarded by mutex_
  std::set<std::string> removing_;         // guarded by mutex_: IDs, while end() works
  // When the host of a node last asked, by NodeSpec::container().
  std::map<std::string, std::chrono::steady_clock::time_point> asked_;  // guarded by mutex_
  std::map<std::string, std::string> why_ended_;                        // guarded by mutex_
  AddressPool addresses_;                                               // guarded by mutex_
};

}  // namespace ppmr
