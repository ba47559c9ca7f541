// How the home suspends a job, and lets a suspended job go on. job_suspension.h has the steps
// between hosts, suspension_files.h the files.
//
// The nodes stand still from their epoch until its files are written, the file of the job under a
// preliminary name. Until then the home lets the nodes run on after any failure. Then the home
// records that it is suspending the job, stops the nodes, and gives the file of the job its final
// name. If the home dies in between, the next agent looks for this file. If the file is there, the
// job is suspended. Otherwise the agent rolls the job back.
#include <arpa/inet.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "jobs/agent/home_jobs.h"
#include "jobs/agent/parallel.h"
#include "jobs/command/command.h"
#include "third_party/spdlog.h"

namespace ppmr {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kCapturePatience{30'000};
constexpr milliseconds kLauncherPatience{20'000};
constexpr milliseconds kLauncherStep{2'000};
constexpr milliseconds kSparePatience{50'000};
constexpr milliseconds kConnectPatience{20'000};
// A host that has the address answers within this time, even over a slow network.
constexpr milliseconds kAddressPatience{1'000};

std::string new_suspension_id() { return new_command_id().substr(0, 16); }

// Returns a socket that connects to a port of the address. A refused connection, too, shows that a
// node has the address, so it does not matter whether a program listens on the port.
UniqueFd begin_to_connect(const std::string& address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(kCommandPort);
  if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) return {};
  (void)connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
  return socket;
}

}  // namespace

Result<JobRecord> HomeJobs::find_to_suspend(const SuspendRequest& request) {
  MutexLock lock(mutex_);
  std::string id = request.job;
  for (const auto& [known, job] : jobs_) {
    const bool fits = request.job.empty() && !job.ending && job.user.uid == request.uid &&
                      (request.allocation.empty() || job.allocation == request.allocation);
    if (!fits) continue;
    if (!id.empty()) return failure(EINVAL, "several jobs of yours began here: name one");
    id = known;
  }
  if (id.empty()) return failure(ENOENT, "no job of yours began on this host");
  captured_.wait_for(mutex_, kCapturePatience,
                     [&]() PPMR_REQUIRES(mutex_) { return !capturing_.contains(id); });
  if (capturing_.contains(id)) return failure(EBUSY, "an epoch of job " + id + " is under way");
  auto found = find_locked(id);
  if (!found) return failure(found.error());
  JobRecord job = **found;
  if (request.uid != 0 && request.uid != job.user.uid) {
    return failure(EPERM, "job " + id + " belongs to another user");
  }
  if (job.rdma) {
    return failure(EOPNOTSUPP, "job " + id +
                                   " uses RDMA (--rdma), and cannot be suspended yet: end it, or "
                                   "evacuate its hosts");
  }
  for (const JobNodePlace& node : job.nodes) {
    if (!node.moving_to.empty()) {
      return failure(EBUSY, "node " + node.name + " moves: suspend the job when it has moved");
    }
  }
  if (!job.protection.rolling_back.empty()) {
    return failure(EBUSY, "the job is being rolled back: " + job.protection.rolling_back);
  }
  ++job.protection.next;
  if (Status saved = replace_locked(**found, std::move(job)); !saved) return failure(saved.error());
  capturing_.insert(id);
  return without_absent_spares_locked(**found);
}

Result<SuspendedState> HomeJobs::suspend(const SuspendRequest& request) {
  const auto began = Clock::now();
  const auto job = find_to_suspend(request);
  if (!job) return failure(job.error());
  const SuspensionFiles files(options_.suspension, job->user, request.directory);
  const SuspensionPlace place{request.directory, new_suspension_id(),
                              suspension_key_id(options_.suspension).value_or("")};
  SuspendedJob suspended{.suspension = place.suspension,
                         .job = job->id,
                         .uid = job->user.uid,
                         .token = job->token,
                         .epoch = job->protection.next - 1,
                         .nodes = {},
                         .launcher = {}};
  for (const JobNodePlace& node : job->nodes) suspended.nodes.push_back({node.name, node.address});
  Status done = files.prepare();
  if (done) done = suspend_job(*job, files, place, suspended);
  {
    MutexLock lock(mutex_);
    capturing_.erase(job->id);
    standing_.erase(job->id);
    captured_.notify_all();
  }
  if (!done) {
    spdlog::warn("job {} is not suspended: {}", job->id, done.error().message);
    const auto goes_on = exists(job->id);
    return failure(goes_on ? done.error() : goes_on.error());
  }
  (void)end(job->id, 0, {"it was suspended in " + request.directory, /*is_suspended=*/true});
  files.discard_others(place.suspension);
  return SuspendedState{.job = job->id,
                        .bytes = suspended.bytes,
                        .took = std::chrono::duration_cast<milliseconds>(Clock::now() - began)};
}

Status HomeJobs::suspend_job(const JobRecord& job, const SuspensionFiles& files,
                             const SuspensionPlace& place, SuspendedJob& suspended) {
  const auto kept = run_epoch(job, suspended.epoch, EpochEnd::kHeld, ask_unless_ending());
  if (!kept) return failure(kept.error());
  suspended.frozen_ns = kept->frozen_ns;
  suspended.bytes = kept->bytes;
  Status done = write_held(job, files, place, suspended);
  if (done) done = commit_suspension(job, place, *kept);
  if (!done) {
    let_nodes_go(job, suspended.epoch, options_.ask);
    files.discard(place.suspension);
    if (job.protection.every_ms == 0) forget_epochs(job, options_.ask);
    return done;
  }
  // From here on, a rollback undoes the suspension after a failure.
  if (Status stopped = stop_nodes(job, options_.ask); !stopped) return stopped;
  return files.publish(place.suspension);
}

Status HomeJobs::write_held(const JobRecord& job, const SuspensionFiles& files,
                            const SuspensionPlace& place, SuspendedJob& suspended) {
  auto launcher = await_launcher(job, suspended.epoch);
  if (!launcher) return failure(launcher.error());
  suspended.launcher = std::move(*launcher);
  const AskHost ask = ask_unless_ending();
  if (Status written = write_nodes(job, suspended.epoch, place, ask); !written) return written;
  if (Status written = files.write(suspended); !written) return written;
  return hold_nodes(job, suspended.epoch, ask);
}

Result<json> HomeJobs::await_launcher(const JobRecord& job, uint64_t number) {
  const auto deadline = Clock::now() + kLauncherPatience;
  {
    MutexLock lock(mutex_);
    standing_[job.id] = nullptr;
  }
  while (Clock::now() < deadline) {
    {
      MutexLock lock(mutex_);
      launcher_spoke_.wait_for(mutex_, kLauncherStep, [&]() PPMR_REQUIRES(mutex_) {
        return !standing_[job.id].is_null();
      });
      if (!standing_[job.id].is_null()) return standing_[job.id];
    }
    const Status held = hold_nodes(job, number, ask_unless_ending());
    if (!held) return failure(held.error());
  }
  return failure(
      ETIMEDOUT,
      "ppmr job run does not say how much it has printed: does it wait for the reader of "
      "its output?");
}

Status HomeJobs::note_launcher(const std::string& id, uid_t uid, const json& launcher) {
  MutexLock lock(mutex_);
  auto found = find_locked(id);
  if (!found) return failure(found.error());
  if (uid != 0 && uid != (*found)->user.uid) {
    return failure(EPERM, "job " + id + " belongs to another user");
  }
  const auto standing = standing_.find(id);
  if (standing == standing_.end()) return failure(ENOENT, "job " + id + " does not stand still");
  standing->second = launcher;
  launcher_spoke_.notify_all();
  return {};
}

Status HomeJobs::commit_suspension(const JobRecord& job, const SuspensionPlace& place,
                                   const KeptEpoch& kept) {
  MutexLock lock(mutex_);
  auto found = find_locked(job.id);
  if (!found) return failure(found.error());
  JobRecord changed = **found;
  JobProtection& protection = changed.protection;
  if (!protection.rolling_back.empty()) return failure(ECANCELED, protection.rolling_back);
  protection.agreed = job.protection.next - 1;
  protection.agreed_ns = kept.frozen_ns;
  protection.bytes = kept.bytes;
  protection.kept_at = kept.kept_at;
  protection.rollbacks_to_agreed = 0;
  protection.rolling_back = "its suspension in " + place.directory + " is not complete";
  changed.suspending_to = place.directory;
  changed.suspension = place.suspension;
  return replace_locked(**found, std::move(changed));
}

Result<bool> HomeJobs::finish_suspension(const JobRecord& job) {
  if (job.suspending_to.empty()) return false;
  const SuspensionFiles files(options_.suspension, job.user, job.suspending_to);
  const auto there = files.read();
  if (!there && there.error().errno_value != ENOENT) return failure(there.error());
  if (!there || there->suspension != job.suspension) {
    files.discard(job.suspension);
    return false;
  }
  (void)end(job.id, 0, {"it was suspended in " + job.suspending_to, /*is_suspended=*/true});
  return true;
}

Result<JobRecord> HomeJobs::plan_resumed(const ResumeRequest& request,
                                         const SuspendedJob& suspended) {
  auto begun = begin_record(request.run);
  if (!begun) return begun;
  auto planned =
      plan_resumption(suspended, std::move(*begun), request.run.hosts, request.run.spares);
  if (!planned) return planned;
  JobRecord& job = *planned;
  MutexLock lock(mutex_);
  if (jobs_.contains(job.id)) {
    return failure(EEXIST, "job " + job.id + " is on this host: it runs, or is about to end");
  }
  // The nodes keep their addresses, which may be in the range of another home. So the job needs
  // only one new address, for its port.
  if (Status few = check_limits_locked(job.user.uid, 1); !few) return failure(few.error());
  for (const JobNodePlace& node : job.nodes) {
    if (!addresses_.is_taken(node.address)) continue;
    return failure(EADDRINUSE, fmt::format("resume job {}: the address {} of node {} is in use by "
                                           "another job",
                                           job.id, node.address, node.name));
  }
  for (const JobNodePlace& node : job.nodes) addresses_.take(node.address);
  auto own = addresses_.take_next();
  if (own) job.port_address = *own;
  // Records the nodes as on their way until they run. Otherwise their hosts, which ask the home
  // where the nodes belong, would take them for arrived.
  JobRecord known = job;
  for (JobNodePlace& node : known.nodes) node.moving_to = std::exchange(node.host, "");
  Status saved = own ? save(known) : failure(own.error());
  if (!saved) {
    for (const JobNodePlace& node : job.nodes) addresses_.give_back(node.address);
    if (own) addresses_.give_back(*own);
    return failure(saved.error());
  }
  capturing_.insert(job.id);
  jobs_[job.id] = std::move(known);
  return planned;
}

Status HomeJobs::check_addresses(const JobRecord& job) const {
  std::string used;
  const Status looked = in_namespace(job.port_name(), [&]() -> Status {
    std::vector<UniqueFd> sockets;
    for (const JobNodePlace& node : job.nodes) sockets.push_back(begin_to_connect(node.address));
    const auto deadline = Clock::now() + kAddressPatience;
    for (size_t i = 0; i < sockets.size(); ++i) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      pollfd answer{sockets[i].get(), POLLOUT, 0};
      if (poll(&answer, 1, static_cast<int>(std::max(left, milliseconds(0)).count())) <= 0)
        continue;
      int error = 0;
      socklen_t size = sizeof error;
      (void)getsockopt(sockets[i].get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0 || error == ECONNREFUSED) used = job.nodes[i].address;
    }
    return {};
  });
  if (!looked || used.empty()) return looked;
  return failure(EADDRINUSE,
                 fmt::format("the address {} of the suspended job is in use in the jobs' network: "
                             "another job has it, which must end first, or this job runs already",
                             used));
}

Status HomeJobs::run_resumed(const JobRecord& job, const SuspensionPlace& place) {
  if (Status joined = join_network(job); !joined) return joined;
  if (Status free = check_addresses(job); !free) return free;
  const Status spares = for_each_in_parallel(job.hosts.size(), [&](size_t i) -> Status {
    if (job.hosts[i].state != HostState::kSpare) return {};
    const auto answer = options_.ask(
        job.hosts[i].name,
        to_request(host_request::Hello{.user = job.user.uid, .allocation = job.allocation}),
        kSparePatience);
    return answer ? Status{} : failure(answer.error());
  });
  if (!spares) return spares;
  if (Status back = resume_nodes(job, options_.host, place, ask_unless_ending()); !back) {
    return back;
  }
  if (job.protection.every_ms == 0) forget_epochs(job, options_.ask);
  MutexLock lock(mutex_);
  auto found = find_locked(job.id);
  if (!found) return failure(found.error());
  JobRecord changed = **found;
  changed.nodes = job.nodes;
  changed.protection.rolling_back.clear();
  if (job.protection.every_ms == 0) {
    changed.protection.agreed = 0;
    changed.protection.kept_at.clear();
  }
  epoch_began_[job.id] = Clock::now();
  return replace_locked(**found, std::move(changed));
}

Result<ResumedJob> HomeJobs::resume(const ResumeRequest& request) {
  const SuspensionFiles files(options_.suspension, request.run.user, request.directory);
  auto suspended = files.read();
  if (!suspended) return failure(suspended.error());
  const SuspensionPlace place{request.directory, suspended->suspension};
  const std::string by =
      fmt::format("job {} on host {} since {:%Y-%m-%d %H:%M:%S} UTC\n", suspended->job,
                  options_.host, fmt::gmtime(std::time(nullptr)));
  if (Status claimed = files.claim(place.suspension, by, request.again); !claimed) {
    return failure(claimed.error());
  }
  auto job = plan_resumed(request, *suspended);
  if (!job) {
    files.give_back(place.suspension);
    return failure(job.error());
  }
  Status ran = run_resumed(*job, place);
  Result<UniqueFd> connection = failure(EIO, "");
  if (ran) {
    connection = connect_through_port(job->port_name(), job->nodes[0].address, kConnectPatience);
    if (!connection) ran = failure(connection.error());
  }
  if (!ran) {
    (void)end(job->id, 0, {ran.error().message});
    files.give_back(place.suspension);
  }
  {
    MutexLock lock(mutex_);
    capturing_.erase(job->id);
    captured_.notify_all();
  }
  if (!ran) return failure(ran.error());
  spdlog::info("job {} of user {} goes on, from {}", job->id, job->user.uid, request.directory);
  return ResumedJob{{std::move(*job), std::move(*connection)}, std::move(suspended->launcher)};
}

}  // namespace ppmr
